"""Train a small classifier privately in a loop of your own, save every step, and go on after an interruption.

    python examples/own_loop.py --epsilon 3 --out /tmp/own-loop
    python examples/own_loop.py --epsilon 3 --out /tmp/own-loop --stop-after 10    # stops; the same command goes on

The data are scikit-learn's handwritten digits, as rows of 64 grey values. Needs: pip install -e ".[cli]"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc

DELTA = 1e-5


def data() -> tuple[TensorDataset, TensorDataset]:
    """The private records, and held-out records, which the guarantee doesn't cover."""
    pixels, digits = load_digits(return_X_y=True)
    # 16 is the largest value of the format. A scale that is computed from the records would be a release of its own.
    inputs = torch.from_numpy(pixels).float() / 16
    labels = torch.from_numpy(digits)
    held_out = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(inputs[~held_out], labels[~held_out]), TensorDataset(inputs[held_out], labels[held_out])


def losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """One loss a sample, ``[B]``."""
    return F.cross_entropy(model(inputs), labels, reduction="none")


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, engine: gc.Engine) -> None:
    """Write the state at once or not at all; between steps, so that it holds no sum without noise."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "engine": engine.state_dict()}
    new = path.with_suffix(".new")
    torch.save(state, new)
    new.replace(path)


def train(epsilon: float, steps: int, batch_size: int, out: Path, stop_after: int | None) -> gc.Engine:
    """Take the planned steps, or as many as ``stop_after`` allows, and write the state after each."""
    private, held_out = data()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    plan = gc.Mechanism(dataset_size=len(private), expected_batch_size=batch_size, steps=steps)
    plan = plan.calibrate(epsilon=epsilon, delta=DELTA)
    gc.check(model, losses, held_out[:8], "layer-wise")  # are samples kept apart?

    engine = gc.attach(model, optimizer, "layer-wise", plan)
    path = out / "state.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        engine.load_state_dict(state["engine"])  # refused if the plan is another one
        print(f"goes on after step {engine.ledger.steps}")

    first = engine.ledger.steps
    for batch in gc.poisson_batches(private, plan, microbatch=128, start=first):
        for inputs, labels in batch:  # several micro-batches, or none: an empty batch is a step too
            engine.backward(losses(model, inputs, labels))
        optimizer.step()
        optimizer.zero_grad()
        save(path, model, optimizer, engine)
        if engine.ledger.steps - first == stop_after:
            print(f"stopped after step {engine.ledger.steps} of {plan.steps}")
            return engine

    record = engine.record(delta=DELTA)
    (out / "privacy.json").write_text(json.dumps(record.to_dict(), indent=2), encoding="utf-8")
    (out / "README.md").write_text(gc.statement.model_card(record, title="Digits, by a loop"), encoding="utf-8")
    with torch.no_grad():
        inputs, labels = held_out.tensors
        accuracy = (model(inputs).argmax(1) == labels).double().mean().item()
    print(record.text())
    print(f"\naccuracy {accuracy:.1%} on {len(held_out)} held-out records")
    return engine


def main(arguments: Sequence[str] | None = None) -> gc.Engine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=256, help="EXPECTED size of a batch.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for the state, the card and the record.")
    parser.add_argument("--stop-after", type=int, help="Stop after so many steps; the next call goes on.")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    return train(given.epsilon, given.steps, given.batch_size, given.out, given.stop_after)


if __name__ == "__main__":
    main()
