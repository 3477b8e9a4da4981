"""Whatever a model does with the rows of a batch, each sample's gradient is that of the sample alone: exact, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

from apart import (
    Clipped,
    Runs,
    attached,
    by_engine,
    copied,
    differing,
    drawn,
    linear,
    losses_of,
    single_samples,
    squares,
)
from arrangements import ARRANGEMENTS, LAYERS, Arrangement, Layer

NAMED = {a.name: a for a in ARRANGEMENTS}


def arranged(m: Any, h: Tensor, arrangements: list[Arrangement], layer: Layer) -> Tensor:
    backs = []
    for arrangement in arrangements:
        h, back = arrangement.to(h)
        backs.append(back)
    out = layer.run(m, h.tanh()).tanh()
    for back in reversed(backs):
        out = back(out)
    return out


def model_of(arrangements: list[Arrangement], layer: Layer) -> Any:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(arranged(m, m.first(x), arrangements, layer).mean(2, keepdim=True))

    return Runs(run, first=linear(5, 5), last=linear(1, 2), **layer.parts()).double()


# ------------------------------------------------------------------ ways of using the model


def called(model: Any, x: Tensor) -> Clipped:
    engine = attached(model)
    return by_engine(engine, lambda: losses_of(model, (x,)))


def in_two_calls(model: Any, x: Tensor) -> Clipped:
    """The losses need both calls; samples take other paths in each."""
    engine = attached(model)
    return by_engine(engine, lambda: losses_of(model, (x,)) + losses_of(model, (x.neg(),)))


def per_sample(model: Any, x: Tensor) -> Clipped:
    engine = attached(model)
    return by_engine(engine, lambda: engine.per_sample(lambda t: squares(model(t)).sum(), x))


def parts_per_sample(model: Any, x: Tensor) -> Clipped:
    """The code of the model, and not its call."""
    engine = attached(model)
    return by_engine(engine, lambda: engine.per_sample(lambda t: squares(model.run(model, t)), x))


def parts_forward_on(model: Any, x: Tensor) -> Clipped:
    engine = attached(model)

    def losses() -> Tensor:
        with engine.forward_on(x):
            return squares(model.run(model, x))

    return by_engine(engine, losses)


def parts_after_the_call(model: Any, x: Tensor) -> Clipped:
    engine = attached(model)
    return by_engine(engine, lambda: losses_of(model, (x,)) + squares(model.run(model, x.neg())))


def twice(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
    return losses_of(model, batch) + losses_of(model, (batch[0].neg(),))


USES: dict[str, tuple[Callable[[Any, Tensor], Clipped], Callable[..., Tensor]]] = {
    "the model's call": (called, losses_of),
    "two calls": (in_two_calls, twice),
    "per_sample": (per_sample, losses_of),
    "parts in per_sample": (parts_per_sample, losses_of),
    "parts in forward_on": (parts_forward_on, losses_of),
    "parts after the call": (parts_after_the_call, twice),
}
OUTSIDE = ("parts in forward_on", "parts after the call")  # the user's own code sees the batch


def inexact(arrangements: list[Arrangement], layer: Layer, use: str, batch: int, steps: int, seed: int) -> list[str]:
    x = drawn(batch, steps, 5, seed=seed)
    model = model_of(arrangements, layer)
    run, losses = USES[use]
    right = single_samples(copied(model), (x,), losses)
    return differing(run(model, x), right)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda a: a.name)
def test_every_arrangement_before_a_layer(arrangement: Arrangement) -> None:
    for use in USES:
        if arrangement.whole or use not in OUTSIDE:
            for batch in (1, 2, 5):
                assert inexact([arrangement], LAYERS["Linear"], use, batch, 3, 0) == [], (use, batch)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=lambda layer: layer.name)
def test_every_layer_behind_arrangements(layer: Layer) -> None:
    for use in USES:
        for names in (["roll"], ["index with ties"], ["transpose and view"], ["by value", "split reversed"]):
            arrangements = [NAMED[name] for name in names]
            if use in OUTSIDE and not all(a.whole for a in arrangements):
                continue
            assert inexact(arrangements, layer, use, 5, 3, 1) == [], (use, names)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(NAMED)), min_size=1, max_size=3),
    layer=st.sampled_from(sorted(LAYERS)),
    use=st.sampled_from(sorted(USES)),
    batch=st.integers(1, 7),
    steps=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_arrangements_before_any_layer_in_any_use(
    names: list[str], layer: str, use: str, batch: int, steps: int, seed: int
) -> None:
    arrangements = [a for a in map(NAMED.__getitem__, names) if a.whole or use not in OUTSIDE]
    torch.manual_seed(seed)
    assert inexact(arrangements, LAYERS[layer], use, batch, steps, seed) == []


MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "a sample as the kernel": lambda h: F.conv1d(torch.ones(1, 3, 9, dtype=h.dtype).cumsum(2), h),
    "a sample as an index": lambda h: TABLE[:, (h.detach()[0, :, 0] > 0).long()],
}
TABLE = drawn(3, 7, 5)


@pytest.mark.parametrize("name", MOVED)
def test_wherever_torch_carries_the_samples(name: str) -> None:
    """Its batching rules don't always put them in front."""
    seen: set[int] = set()

    def run(m: Any, x: Tensor) -> Tensor:
        h = MOVED[name](m.first(x))
        if functorch.is_batchedtensor(h):
            seen.add(functorch.maybe_get_bdim(h))
        out = m.last(h).tanh() + m.shift  # a slice of it would have them in front again
        return out.flatten(0, 1).sum(0, keepdim=True)

    x = drawn(5, 3, 5)
    model = Runs(run, first=linear(5, 5), last=linear(5, 4), shift=torch.nn.Parameter(drawn(4))).double()
    right = single_samples(copied(model), (x,))
    assert differing(called(model, x), right) == []
    assert seen - {0}
