"""The generic rule where values at hand say nothing: parameters at zero agree with every reading of the samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_rules import B, Calls, observed, randn
from groupclip.call import SLOW, VMAP
from groupclip.rules import generic
from models import output_square
from oracle import per_sample_gradients


def windows_first(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, T, 4] as rows [T*B, 4], the first window of every sample in front; then back, and not alone in the output."""
    rows = x.transpose(0, 1).reshape(-1, 4).tanh()
    rows = torch.addcmul(torch.zeros_like(rows), rows, weight)
    return rows.view(x.shape[1], -1, 4).transpose(0, 1) + x.mean(2, keepdim=True)


def over_the_batch(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, 4] as one signal of B steps: every step sees its neighbours."""
    return F.conv1d(x.tanh().t(), weight, padding=1).t() + x[:, :2]


def worst_norm(model: nn.Module, x: Tensor) -> float:
    samples = per_sample_gradients(model, output_square, (x,))
    with observed(model, (x,)) as (engine, uses):
        engine.backward(output_square(model, (x,)))
        norms = engine.unsafe_norms()["weight"]
    assert VMAP in uses.ways["addcmul"]
    return float((norms - torch.stack([g["weight"].norm() for g in samples])).abs().max())


@pytest.mark.parametrize("length", [3, B, 5])
def test_a_parameter_at_zero_does_not_hide_where_the_samples_are(length: int) -> None:
    model = Calls(windows_first, weight=torch.zeros(4)).double()
    assert worst_norm(model, randn(B, length, 4).double()) < 1e-12


def test_it_would_if_the_replay_took_the_parameter_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "_moved", lambda parameter: parameter)
    model = Calls(windows_first, weight=torch.zeros(4)).double()
    assert worst_norm(model, randn(B, 5, 4).double()) > 1e-3


def test_nor_that_the_operation_mixes_them() -> None:
    with observed(Calls(over_the_batch, weight=torch.zeros(2, 4, 3)), (randn(B, 4),)) as (engine, uses):
        engine.model(randn(B, 4))
    assert uses.ways["conv1d"] == {SLOW}


def test_parameters_that_moving_would_take_out_of_their_domain() -> None:
    def roots(x: Tensor, weight: Tensor) -> Tensor:
        return torch.pow(weight, x)  # nan for a negative weight

    model = Calls(roots, weight=torch.full((4,), 0.1)).double()
    x = randn(B, 3, 4).double()
    samples = per_sample_gradients(model, output_square, (x,))
    with observed(model, (x,)) as (engine, uses):
        engine.backward(output_square(model, (x,)))
        norms = engine.unsafe_norms()["weight"]
    assert torch.allclose(norms, torch.stack([g["weight"].norm() for g in samples]), rtol=1e-10)
    assert VMAP in uses.ways["pow"]
