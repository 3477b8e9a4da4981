"""Measures what coarser pixels cost on CIFAR-10 without privacy, and writes docs/pixels.json.

    python benchmarks/pixels.py DATA OUT [--records 1500]

DATA holds cifar10.npz, whose pixels have 6 bits. They are rounded further, training and held-out images alike. Then come the
scattering features of the row cifar10 and a linear model, by ridge regression: no chance is in it. Features are kept in OUT, so the
same command goes on after a stop. The table of docs/records.md is made from the JSON by ``benchmarks/records_page.py``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from groupclip.paper.records.pixels import BITS, FILE, compared, rounded
from groupclip.paper.scaled.vision_data import Images, read, scaled
from groupclip.tasks.scattering import scattered

DOCS = Path(__file__).parent.parent / "docs"
RIDGE = 0.01  # times the number of features, which have about unit size


def features(images: Images, bits: int, kept: Path) -> Tensor:
    """Scattering features ``[N, D]`` of images that are rounded to so many bits; made once."""
    if kept.exists():
        return torch.load(kept, weights_only=True).float()
    chunks = rounded(images.pixels, bits).split(256)
    made = torch.cat([scattered(scaled(chunk)).flatten(1).half() for chunk in chunks])
    torch.save(made, kept)
    return made.float()


def right(train: Tensor, labels: Tensor, test: Tensor, expected: Tensor, classes: int) -> Tensor:
    """Which held-out images ``[N]`` a linear model gets right that is fitted by ridge regression to the classes."""
    size = train.shape[1]
    inner = train @ train.T / size + RIDGE * torch.eye(len(train))
    targets = F.one_hot(labels, classes).float()
    mean = targets.mean(0)
    weights = torch.linalg.solve(inner.double(), (targets - mean).double()).float()
    return ((test @ train.T / size) @ weights + mean).argmax(1) == expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--records", type=int, default=1500, help="images to train on, and as many held out")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    train, test = (images.first(given.records) for images in read(given.data / "cifar10.npz"))
    found: dict[int, Tensor] = {}
    for bits in BITS:
        made = [
            features(part, bits, given.out / f"{name}-{given.records}-{bits}.pt")
            for name, part in (("train", train), ("test", test))
        ]
        found[bits] = right(made[0], train.labels, made[1], test.labels, train.classes)
        print(bits, 100 * found[bits].double().mean().item(), flush=True)
    (DOCS / FILE).write_text(json.dumps(compared(found, given.records), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
