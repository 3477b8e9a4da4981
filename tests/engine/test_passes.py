"""Passes without a backward: they leak nothing, hold nothing and disturb nothing."""

from __future__ import annotations

import gc as garbage
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import groupclip as gc
from check_attached import plan
from check_engine import CORE, ENTRIES, clipped_by_engine, gradients, grouped
from live import Live


class Box:
    """A tensor that autograd has saved for a backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """What autograd holds on to: ``len`` of it counts the saved tensors that are alive."""

    def __init__(self) -> None:
        self.boxes: weakref.WeakSet[Box] = weakref.WeakSet()
        super().__init__(self.pack, lambda box: box.tensor)

    def pack(self, tensor: Tensor) -> Box:
        box = Box(tensor.detach())  # an output that an operation saves would hold its own graph
        self.boxes.add(box)
        return box

    def __enter__(self) -> Saved:
        super().__enter__()
        return self

    def __len__(self) -> int:
        garbage.collect()
        return len(self.boxes)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Counts look at what comes from here on: collecting all that a test session has piled up takes half a second."""
    garbage.collect()
    garbage.freeze()
    yield
    garbage.unfreeze()


def live_tensors() -> int:
    """Those that Python holds."""
    garbage.collect()
    return sum(1 for o in garbage.get_objects() if issubclass(type(o), Tensor))


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("name", CORE)
def test_evaluation_leaks_nothing_and_disturbs_no_pending_backward(name: str) -> None:
    """A hundred passes under no_grad between forward and backward."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    groups = grouped(model, "layer-wise")
    batch = entry.batch(4, torch.float64)
    want = clipped_by_engine(model, entry.losses, batch, groups)
    engine = gc.attach(model, None, groups, None)
    losses = entry.losses(model, batch)
    model.eval()
    with torch.no_grad(), Saved() as saved:
        entry.losses(model, entry.batch(7, torch.float64))
        before = live_tensors()
        for _ in range(100):
            entry.losses(model, entry.batch(7, torch.float64))
        assert live_tensors() == before and len(saved) == 0
    with torch.inference_mode():
        entry.losses(model, entry.batch(3, torch.float64))
    model.train()
    engine.backward(losses)
    for n, g in gradients(model).items():
        assert torch.equal(g, want.sums[n]), n
    assert all(torch.equal(n, want.norms[g]) for g, n in engine.unsafe_norms().items())


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation_holds_no_byte(context: type[torch.no_grad] | type[torch.inference_mode]) -> None:
    """Counted below autograd: after a hundred passes as after the first, with gradients recorded before and after."""
    entry = ENTRIES["gpt-tied"]
    model = entry.model()
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(entry.losses(model, entry.batch(4)))
    batch = entry.batch(7)
    with Live([*model.parameters(), *batch]) as seen:
        held = []
        for _ in range(100):
            with context():
                entry.losses(model.eval(), batch)
            garbage.collect(0)
            held.append(seen.live)
        assert held[-1] <= held[0] and seen.peak > 5_000
        losses = entry.losses(model.train(), batch)
        assert seen.live > held[-1] + 5_000  # it does count what a pass holds
        del losses


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", CORE)
def test_a_forward_pass_thrown_away_changes_nothing(name: str, kept: bool) -> None:
    """With gradients recorded: a validation loss without no_grad, or an exception in the loss. Kept or dropped."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    groups = grouped(model, "layer-wise")
    batch = entry.batch(4, torch.float64)
    want = clipped_by_engine(model, entry.losses, batch, groups)
    engine = gc.attach(model, None, groups, None)
    thrown = [entry.losses(model, entry.batch(7, torch.float64, seed=s)) for s in range(3)]
    if not kept:
        thrown.clear()
    engine.backward(entry.losses(model, batch))
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, want.sums[n], rtol=0, atol=1e-13)
    for group, norms in engine.unsafe_norms().items():
        torch.testing.assert_close(norms, want.norms[group], rtol=1e-13, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("name", CORE)
def test_no_pass_holds_memory(name: str) -> None:
    """Passes thrown away, failed losses, whole steps: what autograd and Python hold stays as it was."""
    entry = ENTRIES[name]
    model = entry.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = gc.attach(model, optimizer, "layer-wise", plan(steps=20))

    def step() -> None:
        entry.losses(model, entry.batch(4))  # thrown away
        with pytest.raises(ValueError, match="one loss per sample"):
            engine.backward(entry.losses(model, entry.batch(4)).sum())
        engine.backward(entry.losses(model, entry.batch(4)))
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    before = live_tensors()
    with Saved() as saved:
        for _ in range(8):
            step()
        assert len(saved) == 0
    assert live_tensors() <= before


@pytest.mark.one_in(2, first=1)
@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("name", CORE)
def test_memory_is_freed_in_the_backward_pass(name: str) -> None:
    """After it nothing is held though the losses are kept; before it, something is (or the test above shows nothing)."""
    entry = ENTRIES[name]
    model = entry.model()
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(entry.losses(model, entry.batch(4)))
    with Saved() as saved:
        losses = entry.losses(model, entry.batch(4))
        assert len(saved) > 10
        engine.backward(losses)
        garbage.collect()
        assert not [box for box in saved.boxes if box.tensor.is_floating_point()]  # position ids may stay
