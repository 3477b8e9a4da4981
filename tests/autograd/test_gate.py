"""One sample's infinities silence nobody else: no other norm moves by a bit, no sum by more than rounding, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from apart import Clipped, Runs, attached, by_engine, drawn, linear, losses_of, squares

B = 4
Forward = Callable[[Any, Tensor], Tensor]


def spread_out(x: Tensor) -> Tensor:
    """Finite forward, infinite backward for a sample that is constant."""
    return x.std(1, keepdim=True)


def p(*shape: int) -> nn.Parameter:
    return nn.Parameter(drawn(*shape))


def attended(m: Any, x: Tensor) -> Tensor:
    """The softmax of a sample whose keys are all masked is over -inf alone."""
    h = m.first(x)
    return m.layer(h, h, h, key_padding_mask=x[:, :, 0] == 1.0, need_weights=False)[0]


def masked_softmax(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    scores = (h @ m.w @ h.transpose(1, 2)).masked_fill(x[:, None, :, 0] == 1.0, -torch.inf)
    return scores.softmax(-1) @ m.last(h)


def ids(x: Tensor) -> Tensor:
    return (x.nan_to_num(0, 0, 0).abs().clamp(max=2) * 4).long()[..., 0]


def by_itself(m: Any, x: Tensor) -> Tensor:
    """NumPy isn't followed, so samples run one at a time."""
    return m.last(m.first(x) + float(x.detach().numpy().size) * spread_out(m.first(x)))


def module(make: Callable[[], nn.Module]) -> Callable[[], dict[str, Any]]:
    def parts() -> dict[str, Any]:
        torch.manual_seed(0)
        return {"layer": make()}

    return parts


MODELS: dict[str, tuple[Forward, Callable[[], dict[str, Any]]]] = {
    "Linear": (lambda m, x: m.last(m.first(x)), dict),
    "Linear behind an infinite slope": (lambda m, x: m.last(spread_out(m.first(x))), dict),
    "parameter times samples": (lambda m, x: m.last(m.first(x) * spread_out(x) * m.w), lambda: {"w": p(5)}),
    "power": (lambda m, x: spread_out(m.first(x)).abs().pow(m.w), lambda: {"w": p(5)}),
    "einsum": (lambda m, x: spread_out(torch.einsum("btd,de->bte", m.first(x), m.w)), lambda: {"w": p(5, 4)}),
    "any operation": (lambda m, x: torch.cdist(m.first(x), m.w[None]), lambda: {"w": p(4, 5)}),
    "derived": (lambda m, x: spread_out(m.first(x)) @ (m.w.tanh() @ m.w.t()), lambda: {"w": p(5, 5)}),
    "derived by qr": (lambda m, x: spread_out(m.first(x)) @ torch.linalg.qr(m.w)[0], lambda: {"w": p(5, 5)}),
    "weight_norm": (
        lambda m, x: spread_out(m.layer(m.first(x))), module(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)))),
    "tied": (lambda m, x: spread_out(m.first(m.first(x).tanh())), dict),
    "Conv1d": (lambda m, x: spread_out(m.layer(m.first(x).transpose(1, 2))), module(lambda: nn.Conv1d(5, 3, 3, padding=1))),
    "Conv1d in groups": (
        lambda m, x: spread_out(m.layer(m.first(x).transpose(1, 2))), module(lambda: nn.Conv1d(5, 5, 3, padding=1, groups=5))),
    "LayerNorm": (lambda m, x: spread_out(m.layer(m.first(x))), module(lambda: nn.LayerNorm(5))),
    "GroupNorm": (lambda m, x: m.layer(m.first(x).transpose(1, 2)), module(lambda: nn.GroupNorm(1, 5))),
    "Embedding": (lambda m, x: m.layer(ids(x)) * spread_out(m.first(x)), module(lambda: nn.Embedding(9, 5))),
    "LSTM": (lambda m, x: spread_out(m.layer(m.first(x))[0]), module(lambda: nn.LSTM(5, 4, batch_first=True))),
    "GRU": (lambda m, x: spread_out(m.layer(m.first(x))[0]), module(lambda: nn.GRU(5, 4, batch_first=True))),
    "MultiheadAttention": (attended, module(lambda: nn.MultiheadAttention(5, 1, batch_first=True))),
    "attention by hand": (masked_softmax, lambda: {"w": p(5, 5)}),
    "one by one": (by_itself, dict),
}  # fmt: skip

BAD = {"nan": torch.nan, "inf": torch.inf, "constant": 1.0, "huge": 1e200}


def passed(model: Any, x: Tensor, use: str) -> Clipped:
    engine = attached(model)
    try:
        if use == "called":
            return by_engine(engine, lambda: losses_of(model, (x,)))
        if use == "per_sample":
            return by_engine(engine, lambda: engine.per_sample(lambda t: squares(model.run(model, t)), x))
        with engine.forward_on(x):
            losses = squares(model.run(model, x))
        return by_engine(engine, lambda: losses)
    finally:
        engine.detach()


def model_of(name: str) -> Any:
    run, parts = MODELS[name]
    return Runs(run, first=linear(), last=linear(5, 4), **parts()).double()


def silenced(name: str, use: str) -> list[str]:
    """Where a bad sample moves the others. A bad sample whose gradient is finite is only told by norms."""
    x = drawn(B, 3, 5)
    harmless = passed(model_of(name), x, use)
    found, dropped = [], 0
    for i in range(B):
        others = [j for j in range(B) if j != i]
        for kind, value in BAD.items():
            bad = x.clone()
            bad[i] = value
            got = passed(model_of(name), bad, use)
            for key, norms in harmless.norms.items():
                if not torch.equal(got.norms[key][others], norms[others]):
                    found.append(f"norms of {key}: {kind} at {i}")
            gone = [key for key, norms in got.norms.items() if not norms[i].isfinite()]
            dropped += len(gone)
            left = passed(model_of(name), x[others], use).sums if gone else {}
            found += [
                f"sum of {key}: {kind} at {i}"
                for key in gone
                if not torch.allclose(got.sums[key], left[key], rtol=1e-7, atol=1e-9)
            ]
    assert dropped  # some bad sample was bad indeed
    return found


@pytest.mark.parametrize("use", ["called", "per_sample"])
@pytest.mark.parametrize("name", MODELS)
def test_no_sample_silences_another(name: str, use: str) -> None:
    assert silenced(name, use) == []


@pytest.mark.parametrize("name", ["Linear", "Linear behind an infinite slope", "derived", "LSTM", "attention by hand"])
def test_beside_the_forward_pass_it_is_refused(name: str) -> None:
    """There one sample's infinity may reach another's gradient: 0 * inf is nan."""
    for i in range(B):
        x = drawn(B, 3, 5)
        x[i] = torch.nan
        with pytest.raises(gc.PrivacyViolation, match="silence them"):
            passed(model_of(name), x, "forward_on")


def by_sign(m: Any, x: Tensor) -> Tensor:
    """The samples on either path run together."""
    h = m.first(x)
    return m.last(h + spread_out(h)) if bool(x[0, 0, 0] > 0) else m.last(h * spread_out(h))


def test_nor_one_on_another_path_or_on_the_same() -> None:
    """Compared with a harmless sample that takes the same path."""
    x = drawn(B, 3, 5)
    x[:, 0, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    harmless = passed(Runs(by_sign, first=linear(), last=linear(5, 4)).double(), x, "called")
    for i in range(B):
        others = [j for j in range(B) if j != i]
        bad = x.clone()
        bad[i, 1:] = torch.nan
        got = passed(Runs(by_sign, first=linear(), last=linear(5, 4)).double(), bad, "called")
        for key, norms in harmless.norms.items():
            assert torch.equal(got.norms[key][others], norms[others]), (i, key)
            assert not got.norms[key][i].isfinite()


@pytest.mark.parametrize("within", [True, False])
def test_a_parameter_that_thaws_after_its_group_was_opened_is_refused(within: bool) -> None:
    """Autograd has no way from the group to it: it would get noise alone, for ever."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        m.last.requires_grad_(True)
        return m.last(h)

    model = Runs(run, first=linear(4, 4), last=linear(4, 4)).double()
    engine = gc.attach(model, None, "all-layer", None)
    model.last.requires_grad_(False)
    if not within:  # a pass that is given up
        model(drawn(B, 4))
        engine.discard()
        engine.backward(squares(model(drawn(B, 4))))
        assert model.last.weight.grad.any()
    else:
        with pytest.raises(gc.UnsupportedOperation, match="unfrozen before its own use"):
            engine.backward(squares(model(drawn(B, 4))))
        assert all(parameter.grad is None for parameter in model.parameters())
    engine.detach()
