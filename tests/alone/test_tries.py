"""What can't run together is tried ever more rarely, and again at once when it went well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from groupclip.alone import run
from groupclip.alone.run import Tries
from groupclip.autograd.vmap import NATIVE


def tried(outcomes: str) -> str:
    """Of each pass whether it tried: ``x`` in vain, ``o`` well, ``.`` not. ``outcomes``: how a try would go in each pass."""
    tries, seen = Tries(), ""
    for outcome in outcomes:
        if tries.is_due():
            tries.tell(in_vain=outcome == "x")
            seen += outcome
        else:
            seen += "."
    return seen


def test_ever_more_rarely() -> None:
    assert tried("x" * 16) == "xx.x...x.......x"
    assert tried("x" * 400).count("x") == 12 and "." * 64 not in tried("x" * 400)


def test_again_at_once_when_it_went_well() -> None:
    assert tried("o" * 5) == "ooooo"
    assert tried("xxxx" + "o" * 4 + "x") == "xx.x...ox"
    assert tried("xo" * 6) == "xo" * 6  # a batch now and then costs no other one


class Outside(nn.Module):
    """Leaves torch in its forward pass, if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.leaves = nn.Linear(4, 5), nn.Linear(5, 3), True

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        factor = float(np.asarray(h.detach().sum().numpy())) if self.leaves else h.detach().sum()
        return self.second(h) * factor


def test_gradients_are_the_same_whether_it_was_tried_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    together, one = run.Alone._together, run.Alone._one_by_one

    def counted(self: run.Alone, *args: object) -> object:
        parts.append(-1)
        return together(self, *args)  # type: ignore[arg-type]

    def single(self: run.Alone, *args: object, **kwargs: object) -> object:
        done = one(self, *args, **kwargs)  # type: ignore[arg-type]
        parts.extend(part.level for part, _ in done)
        return done

    monkeypatch.setattr(run.Alone, "_together", counted)
    monkeypatch.setattr(run.Alone, "_one_by_one", single)
    torch.manual_seed(0)
    model, x = Outside().double(), torch.randn(3, 4, dtype=torch.float64)
    engine = gc.attach(model, None, "layer-wise", None, thresholds=1.0, clip="abadi")
    found = []
    for _ in range(8):
        model.zero_grad()
        engine.backward(model(x).square().sum(1))
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert parts.count(-1) == 4 and parts.count(NATIVE) == 24
    assert all(torch.equal(a, b) for other in found for a, b in zip(found[0], other, strict=True))
    model.leaves = False
    for _ in range(16):
        model.zero_grad()
        engine.backward(model(x).square().sum(1))
    again = [p.grad for p in model.parameters() if p.grad is not None]
    assert parts[-1] == -1
    torch.testing.assert_close(again, found[0], rtol=1e-12, atol=1e-12)
