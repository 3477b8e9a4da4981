"""Train a small convolutional network privately on a folder with one sub-folder of images for each class.

    python examples/images.py photos --epsilon 3 --groups 2 --out /tmp/photos

One image in five is held out. ``gc.plan`` finds the groups that need least memory. Needs: pip install -e ".[cli]"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.tasks import TaskOptions, load_task


class Network(nn.Module):
    """Images ``[B, 3, S, S]`` to logits ``[B, classes]``. GroupNorm keeps samples apart where BatchNorm wouldn't."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """One loss a sample, ``[B]``."""
    return F.cross_entropy(model(inputs), labels, reduction="none")


def train(given: argparse.Namespace) -> gc.Engine:
    """Train, and write weights, card and record to ``given.out``."""
    # hidden files, copies and files that can't be read are left out or refused; the remarks say which
    task = load_task(f"imagefolder:{given.folder}", options=TaskOptions(image_size=given.size))
    print(*task.remarks, sep="\n")
    model = Network(task.num_classes)
    found = gc.plan(model, torch.rand(given.microbatch, *task.input_shape), groups=given.groups)  # needs shapes alone
    print(found.table())

    delta = gc.default_delta(len(task.train))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    plan = gc.Mechanism(dataset_size=len(task.train), expected_batch_size=given.batch_size, steps=given.steps)
    plan = plan.calibrate(epsilon=given.epsilon, delta=delta)
    engine = gc.attach(model, optimizer, found.partition, plan)
    for batch in gc.poisson_batches(task.train, plan, microbatch=given.microbatch):
        for inputs, labels in batch:
            engine.backward(losses(model, inputs, labels))
        optimizer.step()
        optimizer.zero_grad()
    record = engine.record(delta=delta)

    torch.save(model.state_dict(), given.out / "weights.pt")
    (given.out / "privacy.json").write_text(json.dumps(record.to_dict(), indent=2), encoding="utf-8")
    card = gc.statement.model_card(record, title="A network for images", tags=["image-classification"])
    (given.out / "README.md").write_text(card, encoding="utf-8")
    with torch.no_grad():
        right = [int(model(image[None]).argmax() == label) for image, label in (task.test[i] for i in range(len(task.test)))]
    print(record.text())
    print(f"\naccuracy {sum(right) / len(right):.1%} on {len(right)} held-out images")
    return engine


def main(arguments: Sequence[str] | None = None) -> gc.Engine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="FOLDER/CLASS/*.png")
    parser.add_argument("--out", type=Path, required=True, help="Folder for weights, card and record.")
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--groups", type=int, default=2, help="At most so many groups, with the least memory.")
    parser.add_argument("--size", type=int, default=32, help="Side in pixels that images are resized to.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64, help="EXPECTED size of a batch.")
    parser.add_argument("--microbatch", type=int, default=32, help="Most samples held at once.")
    parser.add_argument("--lr", type=float, default=2e-3)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    return train(given)


if __name__ == "__main__":
    main()
