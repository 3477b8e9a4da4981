"""Passes without numbers: the same operations and the same live bytes as the real pass, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import groupclip as gc
from groupclip.errors import UnsupportedOperation
from groupclip.memory import measure
from groupclip.memory.live import Live
from groupclip.memory.passes import Sketched, optimizer_bytes
from groupclip.memory.workload import default_loss
from groupclip.models import build_model
from groupclip.noise import normals
from groupclip.noise.jointly import add_to_all
from groupclip.noise.sources import SecureNoise

STYLES = ("all-layer", "uniform:2", "layer-wise", "param-wise")


def vit(samples: int = 5) -> tuple[nn.Module, Any]:
    model = build_model("vit-micro", input_shape=(3, 32, 32), num_classes=10, patch_size=8, seed=0)
    return model, (torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,)))


def text() -> tuple[nn.Module, Any]:
    model = build_model("text-small", input_shape=(16,), num_classes=2, vocabulary=1000, seed=0)
    return model, torch.stack([torch.randperm(999)[:16] + 1 for _ in range(5)])


def cnn() -> tuple[nn.Module, Any]:
    model = build_model("cnn-small", input_shape=(3, 16, 16), num_classes=4, seed=0)
    return model, torch.randn(5, 3, 16, 16)


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        m: Any = self.model
        x = m.patch_embed(x)
        x = torch.cat([m.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + m.pos_embed
        for block in m.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return m.head(m.norm(x)[:, 0])


def checkpointed() -> tuple[nn.Module, Any]:
    model, batch = vit()
    return Checkpointed(model), batch


CASES = (vit, text, cnn, checkpointed)


@pytest.mark.parametrize("case", CASES)
def test_plain_training_is_predicted_to_the_byte(case) -> None:
    model, batch = case()
    assert Sketched(model, batch, default_loss).plain() == measure(model, batch)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", ("gram", "instantiated"))
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", CASES)
def test_private_training_is_predicted_to_the_byte(case, style: str, method: str) -> None:
    model, batch = case()
    groups = gc.partition(model, style)
    groups = groups.with_methods({name: method for group in groups for name in groups[group]})
    predicted, measured = Sketched(model, batch, default_loss).private(groups), measure(model, batch, groups)
    if case is text:  # ids may repeat from sample to sample, and the sketch has no ids
        assert predicted.peak == pytest.approx(measured.peak, rel=0.01)
    else:
        assert predicted == measured


def test_checkpointing_needs_less_and_the_prediction_says_so() -> None:
    plain, batch = vit(40)
    saved = Checkpointed(plain)
    less, more = (Sketched(m, batch, default_loss).plain().peak for m in (saved, plain))
    assert less < 0.8 * more


@pytest.mark.parametrize("style", ("all-layer", "layer-wise"))
def test_autocast_is_respected(style: str) -> None:
    model, batch = vit(40)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")

    groups = gc.partition(model, style)
    sketched = Sketched(model, batch, loss)
    assert sketched.plain().peak == pytest.approx(measure(model, batch, loss=loss).peak, rel=0.02)
    assert sketched.private(groups).peak == pytest.approx(measure(model, batch, groups, loss=loss).peak, rel=0.02)
    assert sketched.plain().peak < 0.85 * Sketched(model, batch, default_loss).plain().peak


def test_nothing_of_the_model_is_touched() -> None:
    model, batch = vit()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    random = torch.get_rng_state()
    gc.plan(model, batch, groups=2)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())


def test_a_model_that_reads_numbers_is_refused() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * float(x.abs().max())

    with pytest.raises(UnsupportedOperation, match="a number of a tensor"):
        gc.plan(Branching(), torch.randn(3, 4), groups=1)


def test_an_attached_model_is_refused() -> None:
    model, batch = cnn()
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(ValueError, match="attached"):
        gc.plan(model, batch, groups=1)
    engine.detach()


@pytest.mark.parametrize("momentum", (0.0, 0.9))
def test_sgd_state(momentum: float) -> None:
    model, _ = cnn()
    numbers = sum(p.numel() for p in model.parameters())
    state, step = optimizer_bytes(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum))
    assert state == (4 * numbers if momentum else 0)
    assert step >= 4 * numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shapes", [[(30, 30)] * 30, [(30, 30)] * 100, [(300, 300)], [(300, 300), (20, 20), (5, 5)]])
@pytest.mark.parametrize("reached", [True, False])
def test_what_the_noise_takes_is_predicted(
    shapes: list[tuple[int, int]], dtype: torch.dtype, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte: on one large parameter, on small ones that are drawn together, and on both.

    Where tensors are watched, NumPy isn't let at their memory: ``reached`` has it as it is in a run.
    """
    if reached:
        monkeypatch.setattr(normals, "_reachable", lambda tensor: True)
        monkeypatch.setattr(normals, "vectorised", lambda: True)
    elif dtype == torch.float32:
        monkeypatch.setattr(normals, "bytes_for", lambda count: 16 * count)
    model = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes])
    gradients = [torch.zeros_like(p.data) for p in model]
    with Live(gradients) as live:
        before = live.live
        add_to_all(SecureNoise(), [(gradient, 1.0) for gradient in gradients])
    numbers = max(p.numel() for p in model) if len(shapes) < 30 else min(900 * len(shapes), (1 << 16) // 900 * 900)
    twice = 0 if reached else 8 * numbers  # torch looks at the words as an array and as a tensor, so they count twice
    held = sum(g.numel() * g.element_size() for g in gradients)
    assert optimizer_bytes(model, None)[1] - held == live.peak - before - twice


def test_adam_state_is_predicted_before_and_after_a_step() -> None:
    model, batch = cnn()
    numbers = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    assert optimizer_bytes(model, optimizer)[0] == 8 * numbers
    default_loss(model, batch).sum().backward()
    optimizer.step()
    assert optimizer_bytes(model, optimizer)[0] == 8 * numbers
