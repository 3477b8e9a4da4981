"""Train on scikit-learn's digits with Lightning, privately.

    python examples/with_lightning.py --epsilon 3

What differs from a plain program: the plan, the loader, the callback, and the statement. Needs: pip install -e ".[cli,lightning]"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import groupclip as gc
from groupclip.integrations.lightning import PrivateBatches, PrivateTraining

DELTA = 1e-5


class Digits(lightning.LightningModule):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pixels, labels = batch  # of one record: every record runs alone
        return F.cross_entropy(self.net(pixels), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        pixels, labels = batch
        self.log("accuracy", (self.net(pixels).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


def main(arguments: Sequence[str] | None = None) -> gc.Engine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256, help="EXPECTED size of a batch.")
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    args = parser.parse_args(arguments)

    pixels, labels = (torch.as_tensor(found) for found in load_digits(return_X_y=True))
    everything = TensorDataset(pixels.float() / 16, labels.long())
    held_out, train = (torch.utils.data.Subset(everything, rows) for rows in (range(360), range(360, len(everything))))

    steps = args.epochs * round(len(train) / args.batch_size)
    plan = gc.Mechanism(dataset_size=len(train), expected_batch_size=args.batch_size, steps=steps)
    plan = plan.calibrate(epsilon=args.epsilon, delta=DELTA)
    private = PrivateTraining(groups="layer-wise", delta=DELTA)

    module = Digits(rate=0.01)
    trainer = lightning.Trainer(
        max_epochs=args.epochs, callbacks=[private], default_root_dir=args.out, accelerator="auto", devices=1, logger=False,
        enable_progress_bar=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, PrivateBatches(train, plan, microbatch=128), DataLoader(held_out, batch_size=360))

    print(f"accuracy {100 * float(trainer.callback_metrics['accuracy']):.1f} % on 360 held-out digits")
    print(private.engine.statement(delta=DELTA))
    return private.engine


if __name__ == "__main__":
    main()
