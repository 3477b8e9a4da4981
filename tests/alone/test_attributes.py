"""What a pass leaves: tensors on modules as torch leaves them, and nothing of the engine, however it ends."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

import groupclip as gc
from apart import (
    REFUSALS,
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
    wrong,
)

X = drawn(6, 3, 5)


def model_of(run: Callable[..., Tensor], **parts: Any) -> Any:
    return Runs(run, first=linear(), last=linear(5, 4), **parts).double()


# ------------------------------------------------------------------ tensors that a pass leaves on its modules


def natively(x: Tensor) -> float:
    """NumPy isn't followed: its samples run one at a time."""
    return float(x.detach().numpy().size)


def by_path(x: Tensor) -> float:
    return 1.0 if bool(x[0, 0, 0] > 0) else 2.0


WAYS: dict[str, Callable[[Tensor], float]] = {"together": lambda x: 1.0, "by path": by_path, "one by one": natively}


def one_odd(x: Tensor) -> float:
    """The only sample of its path runs by itself, the others together."""
    return 1.0 if bool(x[0, 0, 0] > X[:, 0, 0].max() - 1e-9) else 2.0


WAYS["one apart"] = one_odd


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", ["a number", "rows", "in a list", "in a dictionary"])
def test_what_a_loss_takes_from_a_module_is_each_samples_own(kept: str, way: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x) * WAYS[way](x)
        if kept == "a number":
            m.aux = h.square().mean()
        elif kept == "rows":
            m.aux = h
        elif kept == "in a list":
            m.listed.clear()
            m.listed.append(h)
        else:
            m.named["h"] = h
        return m.last(h.tanh())

    def losses(m: Any, batch: tuple[Tensor, ...]) -> Tensor:
        found = squares(m(*batch))
        aux = {"in a list": lambda: m.listed[0], "in a dictionary": lambda: m.named["h"]}.get(kept, lambda: m.aux)()
        return found + (aux if aux.dim() < 2 else squares(aux))

    assert wrong(model_of(run, listed=[], named={}, aux=None), [(X,), (X[:3].neg(),)], losses) == []


@pytest.mark.parametrize("way", WAYS)
def test_features_that_a_hook_takes_are_each_samples_or_refused(way: str) -> None:
    """A closure can't be looked into: the features must come out as they should, or not at all."""
    taken: dict[str, Tensor] = {}
    model = model_of(lambda m, x: m.last(m.first(x).tanh() * WAYS[way](x)))
    model.first.register_forward_hook(lambda m, args, out: taken.__setitem__("h", out))
    right = single_samples(copied(model), (X,), lambda m, b: squares(m(*b)) + squares(m.first(*b)))
    engine = attached(model)
    try:
        found = by_engine(engine, lambda: squares(model(X)) + squares(taken["h"]))
    except (*REFUSALS, RuntimeError):
        return
    assert differing(found, right) == []


class LastState(nn.Module):
    """Its outputs are a recurrence's: ``[B, T, H]``, and states ``[layers, B, H]``."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(5, 4, layers, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.rnn(x)


@pytest.mark.parametrize("layers", [1, 2])
def test_samples_lie_in_the_outputs_where_torch_lays_them(layers: int) -> None:
    """A sample's state ``[1, 1, H]`` doesn't say in which dimension the batch is."""

    def losses(m: Any, batch: tuple[Tensor, ...]) -> Tensor:
        out, (h, c) = m(batch[0])
        return (h[-1] - batch[1]).square().sum(1) + c.mean((0, 2)) + squares(out)

    assert wrong(LastState(layers), [(X, drawn(6, 4)), (X[:1], drawn(1, 4)), (X[:2], drawn(2, 4))], losses) == []


# ------------------------------------------------------------------ passes that end in an error


def dead_tensors(model: nn.Module) -> list[str]:
    """Where modules hold a tensor of samples side by side, outside of a pass."""
    return [
        f"{name}.{key}"
        for name, module in model.named_modules()
        for held in (module.__dict__, module._buffers, module._parameters)
        for key, value in held.items()
        if isinstance(value, Tensor) and functorch.is_batchedtensor(value)
    ]


def assert_nothing_is_left(model: nn.Module) -> None:
    assert functorch.peek_interpreter_stack() is None
    assert torch._C._len_torch_function_stack() == 0
    assert dead_tensors(model) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, RuntimeError, ZeroDivisionError, MemoryError]
)
@pytest.mark.parametrize("way", WAYS)
def test_an_error_in_the_forward_pass_leaves_nothing(error: type[BaseException], way: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        m.kept = m.first(x) * WAYS[way](x)
        m.mean = m.kept.detach().mean()
        if m.fails:
            raise error("no such luck")
        return m.last(m.kept)

    model = model_of(run, fails=False, kept=None)
    model.register_buffer("mean", torch.zeros((), dtype=torch.float64), persistent=False)
    right = single_samples(copied(model), (X,))
    engine = attached(model)
    for fails in (True, False, True, False):
        model.fails = fails
        if fails:
            with pytest.raises(error):
                model(X)
        else:
            assert differing(by_engine(engine, lambda: losses_of(model, (X,))), right) == []
        assert_nothing_is_left(model)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("refused", ["outputs of other shapes", "an object", "dimension 0"])
def test_outputs_that_are_refused_leave_nothing(refused: str, way: str) -> None:
    def run(m: Any, x: Tensor) -> Any:
        m.kept = m.first(x) * WAYS[way](x)
        out = m.last(m.kept)
        if not m.fails:
            return out
        if refused == "an object":
            return Holder(out)
        return out.expand(2, -1, -1) if refused == "dimension 0" else out[:, : 2 if WAYS[way](x) == 1.0 else 3].sum(0)

    model = model_of(run, fails=True, kept=None)
    engine = attached(model)
    with pytest.raises(gc.UnsupportedOperation):
        model(X)
    assert_nothing_is_left(model)
    model.fails = False
    right = single_samples(copied(model), (X,))
    assert differing(by_engine(engine, lambda: losses_of(model, (X,))), right) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_a_function_of_the_samples_leaves_nothing(error: type[BaseException]) -> None:
    model = model_of(lambda m, x: m.last(m.first(x)))
    right = single_samples(copied(model), (X,))
    engine = attached(model)

    def fails(t: Tensor) -> Tensor:
        squares(model(t))
        raise error("no such luck")

    with pytest.raises(error):
        engine.per_sample(fails, X)
    assert_nothing_is_left(model)
    with pytest.raises(error), engine.forward_on(X):
        fails(X)
    assert_nothing_is_left(model)
    assert differing(by_engine(engine, lambda: engine.per_sample(lambda t: squares(model(t)), X)), right) == []


def test_an_error_in_the_backward_pass_leaves_nothing() -> None:
    """In a hook of a sample's own tensor, which autograd calls."""

    def stop(_: Tensor) -> None:
        raise KeyboardInterrupt

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        if m.fails:
            h.register_hook(stop)
        return m.last(h)

    model = model_of(run, fails=False)
    right = single_samples(copied(model), (X,))
    engine = attached(model)
    model.fails = True
    losses = losses_of(model, (X,))
    with pytest.raises(KeyboardInterrupt):
        engine.backward(losses)
    assert_nothing_is_left(model)
    assert all(p.grad is None for p in model.parameters())
    model.fails = False
    assert differing(by_engine(engine, lambda: losses_of(model, (X,))), right) == []


# ------------------------------------------------------------------ threads


def test_two_engines_in_two_threads() -> None:
    """Each thread has levels and modes of its own."""
    found: list[list[str]] = []

    def train(seed: int) -> None:
        x = drawn(6, 3, 5, seed=seed)
        model = model_of(lambda m, x: m.last(m.first(x).tanh() * by_path(x)))
        right = single_samples(copied(model), (x,))
        engine = attached(model)
        for _ in range(5):
            found.append(differing(by_engine(engine, lambda: losses_of(model, (x,))), right))

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[]] * 15


def test_evaluation_in_another_thread_during_a_pass() -> None:
    seen: list[Any] = []
    plain = model_of(lambda m, x: m.last(m.first(x)))
    right = plain(X).detach()

    def run(m: Any, x: Tensor) -> Tensor:
        def evaluate() -> None:
            with torch.no_grad():
                seen.append(m(X) if m.deep else None)

        m.deep = not m.deep
        if m.deep:
            thread = threading.Thread(target=evaluate)
            thread.start()
            thread.join()
        return m.last(m.first(x))

    model = model_of(run, deep=False)
    model.load_state_dict(plain.state_dict())
    truth = single_samples(plain, (X,))
    engine = attached(model)
    assert differing(by_engine(engine, lambda: losses_of(model, (X,))), truth) == []
    assert seen and torch.allclose(seen[0], right, rtol=1e-12, atol=1e-12)


def test_layers_that_run_in_threads_of_the_model() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        found: dict[int, Tensor] = {}

        def layer(i: int) -> None:
            with suppress(RuntimeError):  # a thread sees nothing of the transform that the model is in
                found[i] = (m.first if i else m.other)(x)

        threads = [threading.Thread(target=layer, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return m.last(found[0] * found[1])

    model = model_of(run, other=linear(5, 5))
    right = single_samples(copied(model), (X,))
    engine = attached(model)
    assert differing(by_engine(engine, lambda: losses_of(model, (X,))), right) == []


# ------------------------------------------------------------------ copies, and what detach leaves


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = linear(), nn.BatchNorm1d(3).eval()
        self.register_buffer("scale", torch.ones(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.norm(x)) * self.scale


def belongings(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in module.__dict__.items():
            found[f"{name}.{key}"] = sorted(map(str, value)) if isinstance(value, (dict, set)) else type(value)
        for key, value in module._parameters.items():
            found[f"{name}.{key}"] = (type(value), sorted(vars(value)) if value is not None else None)
    return found


def test_detach_leaves_the_model_as_it_was() -> None:
    model = Net().double()
    before, keys = belongings(model), list(model.state_dict())
    engine = attached(model)
    assert list(model.state_dict()) == keys
    by_engine(engine, lambda: squares(model(X)))
    engine.detach()
    assert belongings(model) == before
    squares(model(X)).sum().backward()
    assert model.first.weight.grad is not None


def test_a_copy_and_a_pickle_carry_nothing_of_the_engine() -> None:
    model = Net().double()
    want = model(X).detach()
    engine = attached(model)
    by_engine(engine, lambda: squares(model(X)))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    assert set(torch.load(buffer, weights_only=True)) == set(model.state_dict())
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert "_compiled_call_impl" not in again.__dict__
        with torch.no_grad():
            assert torch.equal(again(X), want)
    plain = pickle.loads(pickle.dumps(model))
    assert type(plain.first.weight) is nn.Parameter
    right = single_samples(plain, (X,))
    assert differing(by_engine(attached(plain), lambda: squares(plain(X))), right) == []
    with pytest.raises(gc.CoverageError, match="deep copy of an attached one"):
        copy.deepcopy(model)(X)
    assert differing(by_engine(engine, lambda: squares(model(X))), right) == []


# ------------------------------------------------------------------ outputs


class Holder:
    def __init__(self, h: Tensor) -> None:
        self.h = h


def signed(x: Tensor) -> bool:
    return bool(x[0, 0, 0] > 0)


TWO_PATHS = X.clone()
TWO_PATHS[:, 0, 0] = torch.tensor([1.0, -1, 1, -1, -1, 1])

CONSTANTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a tensor that is made": lambda m, x: torch.tensor([2.0 if signed(x) else 3.0]),
    "a number's tensor": lambda m, x: torch.tensor(2.0 if signed(x) else 3.0),
    "buffers": lambda m, x: m.a if signed(x) else m.b,
    "parameters": lambda m, x: m.w if signed(x) else m.v,
    "computed from parameters": lambda m, x: m.w * 2 if signed(x) else m.v * 2,
    "a parameter, or a sample": lambda m, x: m.w if signed(x) else m.first(x).mean().view(1),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_is_another_on_another_path(name: str) -> None:
    def losses(m: Any, batch: tuple[Tensor, ...]) -> Tensor:
        out, factor = m(*batch)
        return squares(out) * factor.square()

    one, two = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    model = model_of(lambda m, x: (m.last(m.first(x)), CONSTANTS[name](m, x)), w=one, v=two)
    model.register_buffer("a", torch.ones(1, dtype=torch.float64))
    model.register_buffer("b", torch.full((1,), 3.0, dtype=torch.float64))
    assert wrong(model, [(TWO_PATHS,), (TWO_PATHS.roll(1, 0),)], losses) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "wrapped", [Holder, lambda h: {h}, lambda h: torch.distributions.Normal(h, 1.0, validate_args=False)]
)
def test_samples_in_objects_that_are_not_looked_into_are_refused(wrapped: Callable[[Tensor], Any], way: str) -> None:
    model = model_of(lambda m, x: wrapped(m.last(m.first(x)) * WAYS[way](x)))
    engine = attached(model)
    with pytest.raises(gc.UnsupportedOperation, match=r"engine\.per_sample"):
        model(X)
    model.run = lambda m, x: m.last(m.first(x))
    right = single_samples(copied(model), (X,))
    assert differing(by_engine(engine, lambda: losses_of(model, (X,))), right) == []


class Remembers(nn.Module):
    """Adds what the forward pass before kept of its samples; it leaves torch on request, so that samples run one at a time."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way = nn.Linear(5, 4), nn.Linear(4, 2), way

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.way == "numpy":
            h = h + torch.from_numpy(x.detach().numpy()[..., :4] * 0.0)
        elif self.way == "path" and bool(x.sum() > 0):
            h = 2 * h
        before = getattr(self, "before", None)
        self.before = h
        return self.last(h if before is None else h + before)


@pytest.mark.parametrize("way", ["together", "numpy", "path"])
def test_what_a_sample_leaves_on_a_module_is_seen_by_no_other_sample_of_the_pass(way: str) -> None:
    torch.manual_seed(0)
    model, x = Remembers(way).double(), torch.randn(6, 5).double()
    alone = []
    for i in range(6):
        model.__dict__.pop("before", None)
        grads = torch.autograd.grad(model(x[i : i + 1]).square().sum(), list(model.parameters()))
        alone.append(torch.stack([g.norm() for g in grads]))
    model.__dict__.pop("before", None)
    engine = gc.attach(model, None, "param-wise", None)
    engine.backward(model(x).square().sum(1))
    found = torch.stack(list(engine.unsafe_norms().values()), 1)
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-10, atol=0)
    assert model.before.shape == (6, 4)  # pyright: ignore[reportAttributeAccessIssue]


# ------------------------------------------------------------------ numbers and constants that a pass leaves on its modules

LEFT: dict[str, Callable[[Any, Tensor], None]] = {
    "a number": lambda m, x: setattr(m, "scale", 2.0 if signed(x) else 3.0),
    "a number, or nothing": lambda m, x: setattr(m, "scale", 2.0) if signed(x) else None,
    "a text": lambda m, x: setattr(m, "name", "positive" if signed(x) else "negative"),
    "a truth": lambda m, x: setattr(m, "positive", signed(x)),
    "a constant": lambda m, x: setattr(m, "scale", m.a if signed(x) else m.b),
    "a constant that is made": lambda m, x: setattr(m, "scale", torch.tensor([2.0 if signed(x) else 3.0])),
    "in a list": lambda m, x: m.listed.append(2.0 if signed(x) else 3.0),
    "in a dictionary": lambda m, x: m.named.update(scale=2.0 if signed(x) else 3.0),
    "as an array": lambda m, x: setattr(m, "scale", np.array([2.0 if signed(x) else 3.0])),
    "a tuple": lambda m, x: setattr(m, "scale", (1, 2.0 if signed(x) else 3.0)),
}


def holding(run: Callable[..., Tensor], **held: Any) -> Any:
    return model_of(run, a=torch.tensor(2.0), b=torch.tensor(3.0), scale=1.0, listed=[], named={}, **held)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_another_on_another_path_and_has_no_rows_is_refused(name: str) -> None:
    """``losses * model.scale`` would be by the scale of the path that ran last."""

    def run(m: Any, x: Tensor) -> Tensor:
        LEFT[name](m, x)
        return m.last(m.first(x))

    model = holding(run)
    engine = attached(model)
    before = dict(model.__dict__)
    with pytest.raises(gc.UnsupportedOperation, match=r"another value in '?\w+'? than .* Return it from forward\(\)"):
        model(TWO_PATHS)
    assert model.__dict__ == before and model.listed == [] and model.named == {}
    same = TWO_PATHS[TWO_PATHS[:, 0, 0] > 0]
    right = single_samples(copied(model), (same,))
    assert differing(by_engine(engine, lambda: losses_of(model, (same,))), right) == []


def test_the_advice_for_what_is_another_on_another_path_works() -> None:
    def losses(m: Any, batch: tuple[Tensor, ...]) -> Tensor:
        out, scale = m(*batch)
        return squares(out) * scale

    model = model_of(lambda m, x: (m.last(m.first(x)), x.new_full((1,), 2.0 if signed(x) else 3.0)))
    assert wrong(model, [(TWO_PATHS,), (TWO_PATHS.roll(1, 0),)], losses) == []


@pytest.mark.parametrize("way", WAYS)
def test_counters_count_passes_and_caches_are_kept(way: str) -> None:
    """However many runs a pass takes, it counts once, and positions are those that the model would have kept."""

    def run(m: Any, x: Tensor) -> Tensor:
        factor = WAYS[way](x)
        m.calls += 1
        m.counts["calls"] = m.counts.get("calls", 0) + 1
        m.seen.append(m.calls)
        if m.positions is None or len(m.positions) < x.shape[1]:
            m.positions = torch.arange(x.shape[1])
            m.masks[x.shape[1]] = torch.ones(1, x.shape[1], 1, dtype=x.dtype)
        h = m.first(x) * factor * m.masks[max(m.masks)][:, : x.shape[1]]
        return m.last(h + m.positions[: x.shape[1], None] * m.calls)

    held = {"calls": 0, "counts": {}, "seen": [], "positions": None, "masks": {}}
    model = model_of(run, **copy.deepcopy(held))
    engine = attached(model)
    for n, steps in enumerate([3, 2, 4, 4], start=1):
        x = X[:, :1].expand(6, steps, 5).clone()
        alone = copied(model)
        rows = [single_samples(copy.deepcopy(alone), (x[i : i + 1],)) for i in range(6)]
        found = by_engine(engine, lambda x=x: losses_of(model, (x,)))
        for name, norms in found.norms.items():
            assert torch.allclose(norms, torch.cat([row.norms[name] for row in rows]), rtol=1e-9)
        assert (model.calls, model.counts, model.seen) == (n, {"calls": n}, list(range(1, n + 1)))
        assert torch.equal(model.positions, torch.arange(max(3, steps)))
        assert {k: tuple(v.shape) for k, v in model.masks.items()} == {k: (1, k, 1) for k in ([3] if n < 3 else [3, 4])}


def test_the_longest_positions_of_all_paths_are_kept() -> None:
    """Samples of other lengths leave tensors that begin alike."""

    def run(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        steps = int(lengths)
        if m.positions is None or len(m.positions) < steps:
            m.positions = torch.arange(steps)
        return m.last(m.first(x[:, :steps]) + m.positions[:steps, None]).mean(1)

    model = model_of(run, positions=None)
    batches = [(X, torch.tensor([2, 3, 2, 1, 3, 2])), (X, torch.tensor([1, 1, 2, 2, 1, 3]))]
    assert wrong(model, batches) == []
    engine = attached(model)
    model.positions = None
    model(*batches[0])
    engine.detach()
    assert torch.equal(model.positions, torch.arange(3))
