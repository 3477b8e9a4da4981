"""Train on scikit-learn's digits with Accelerate, privately.

    python examples/with_accelerate.py --epsilon 3 --precision bf16

What differs from a plain program: the plan, ``attach``, the batches, and ``engine.backward`` of one loss a record. Needs:
pip install -e ".[cli,transformers]"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset

import groupclip as gc
from groupclip.integrations.accelerate import attach

DELTA = 1e-5


def main(arguments: Sequence[str] | None = None) -> gc.Engine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=256, help="EXPECTED size of a batch.")
    parser.add_argument("--precision", choices=["no", "bf16"], default="no")
    args = parser.parse_args(arguments)

    pixels, digits = (torch.as_tensor(found) for found in load_digits(return_X_y=True))
    everything = TensorDataset(pixels.float() / 16, digits.long())
    held_out, train = (Subset(everything, rows) for rows in (range(360), range(360, len(everything))))
    plan = gc.Mechanism(dataset_size=len(train), expected_batch_size=args.batch_size, steps=args.steps)
    plan = plan.calibrate(epsilon=args.epsilon, delta=DELTA)

    accelerator = Accelerator(mixed_precision=args.precision)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    engine = attach(accelerator, model, optimizer, "layer-wise", plan)
    for batch in gc.poisson_batches(train, plan, microbatch=128):
        for inputs, labels in batch:
            outputs = model(inputs.to(accelerator.device))
            engine.backward(F.cross_entropy(outputs, labels.to(accelerator.device), reduction="none"))
        optimizer.step()
        optimizer.zero_grad()

    inputs, labels = (part.to(accelerator.device) for part in held_out[:])
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).float().mean()
    accelerator.print(f"accuracy {100 * right:.1f} % on 360 held-out digits")
    accelerator.print(engine.statement(delta=DELTA))
    engine.detach()
    return engine


if __name__ == "__main__":
    main()
