"""Train on scikit-learn's digits by a program written for Opacus, of which two import lines changed.

    python examples/with_opacus.py --epsilon 3

With ``from opacus import PrivacyEngine`` and ``from opacus.utils.batch_memory_manager import BatchMemoryManager`` it runs under
Opacus, but for the last line. Needs: pip install -e ".[cli]"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from groupclip.integrations.opacus import BatchMemoryManager, PrivacyEngine

DELTA = 1e-5


def main(arguments: Sequence[str] | None = None) -> PrivacyEngine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256, help="EXPECTED size of a batch.")
    args = parser.parse_args(arguments)

    pixels, digits = (torch.as_tensor(found) for found in load_digits(return_X_y=True))
    everything = TensorDataset(pixels.float() / 16, digits.long())
    held_out, train = (Subset(everything, rows) for rows in (range(360), range(360, len(everything))))

    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    privacy_engine = PrivacyEngine()
    model, optimizer, loader = privacy_engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(train, batch_size=args.batch_size),
        target_epsilon=args.epsilon,
        target_delta=DELTA,
        epochs=args.epochs,
        max_grad_norm=1.0,
    )
    for _ in range(args.epochs):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=128, optimizer=optimizer) as pieces:
            for inputs, labels in pieces:
                optimizer.zero_grad()
                criterion(model(inputs), labels).backward()
                optimizer.step()

    inputs, labels = held_out[:]
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).float().mean()
    print(f"accuracy {100 * right:.1f} % on 360 held-out digits, epsilon {privacy_engine.get_epsilon(DELTA):.2f}")
    print(privacy_engine.statement(DELTA))
    return privacy_engine


if __name__ == "__main__":
    main()
