"""The learning rate of the small image experiment, chosen without a look at CIFAR-10: Fashion-MNIST takes its place.

    python benchmarks/vision_small_lr.py DATA_FOLDER OUT

50,000 of its training images, so that the plan is that of the experiment; epsilon 2. Writes one result a run under OUT.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from groupclip.paper.scaled.vision import FULL, SIZES, STYLES, Folders, build
from groupclip.paper.scaled.vision_data import read
from groupclip.paper.trainer import train_cell

STAND_IN = "fashion_mnist.npz"
RECORDS = 50_000
RATES = (2e-3, 4e-3, 8e-3)


def main(data: Path, out: Path) -> None:
    train, _ = read(data / STAND_IN)
    records = train.first(RECORDS)
    for steps in (15, 25):
        for size, shape in SIZES.items():
            for style in ("all-layer", "param-wise"):
                for lr in RATES:
                    settings = dataclasses.replace(
                        FULL.settings, epsilon=2.0, steps=steps, lr=lr, clipping=STYLES[style]
                    )
                    workload = build(shape, FULL.recipe, settings, Folders(data, out / "made"), private=STAND_IN)
                    workload = dataclasses.replace(workload, train=records, collate=records.batch)
                    cell = {
                        "model": size,
                        "data": "fashion-mnist",
                        "clipping": style,
                        "lr": lr,
                        "steps": steps,
                        "seed": 0,
                    }
                    result = train_cell(
                        workload, experiment="vision-small-lr", cell=cell, settings=settings, folder=out
                    )
                    print(size, style, steps, lr, f"{result.metrics['accuracy']:.1f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
