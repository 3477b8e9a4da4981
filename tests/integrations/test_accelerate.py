"""Accelerate: prepared before or after, bf16, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

accelerate = pytest.importorskip("accelerate")

import groupclip as gc  # noqa: E402
from groupclip.integrations.accelerate import attach  # noqa: E402
from groupclip.noise import InsecureNoise  # noqa: E402

KEY = bytes(range(32))
PLAN = gc.Mechanism(dataset_size=30, expected_batch_size=10, steps=3, noise_multiplier=1.0)


@pytest.fixture(autouse=True)
def one_accelerator() -> Iterator[None]:
    """Settings of an earlier accelerator would stay."""
    accelerate.state.AcceleratorState._reset_state(True)
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def accelerator(precision: str = "no", **others: object) -> accelerate.Accelerator:
    return accelerate.Accelerator(cpu=True, mixed_precision=precision, **others)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def records() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(30, 5, generator=draw), torch.randint(0, 3, (30,), generator=draw))


def trained(order: str, precision: str = "no") -> dict[str, Tensor]:
    model, optimizer = model_and_optimizer()
    batches = gc.poisson_batches(records(), PLAN, microbatch=4, key=KEY)
    noise = InsecureNoise(3)
    if order == "own loop":
        engine = gc.attach(model, optimizer, "layer-wise", PLAN, noise=noise)
    elif order == "attach, prepare":
        accelerating = accelerator(precision)
        engine = attach(accelerating, model, optimizer, "layer-wise", PLAN, noise=noise)
        model, optimizer = accelerating.prepare(model, optimizer)
    else:
        accelerating = accelerator(precision)
        model, optimizer = accelerating.prepare(model, optimizer)
        engine = attach(accelerating, model, optimizer, "layer-wise", PLAN, noise=noise)
    if order != "own loop":
        assert accelerating.prepare(batches) is batches  # nothing is sharded
    for batch in batches:
        for inputs, labels in batch:
            engine.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger.steps == 3
    engine.detach()
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("order", ["attach, prepare", "prepare, attach"])
def test_both_orders_are_the_own_loop_bit_for_bit(order: str) -> None:
    found, expected = trained(order), trained("own loop")
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("order", ["attach, prepare", "prepare, attach"])
def test_bf16_is_autocast(order: str) -> None:
    """As the own loop under autocast, bit for bit; and near to float32 without being it."""
    model, optimizer = model_and_optimizer()
    engine = gc.attach(model, optimizer, "layer-wise", PLAN, noise=InsecureNoise(3))
    for batch in gc.poisson_batches(records(), PLAN, microbatch=4, key=KEY):
        for inputs, labels in batch:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(inputs)
            engine.backward(F.cross_entropy(outputs.float(), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()
    found, exact = trained(order, "bf16"), trained("own loop")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    assert max(float((found[name] - exact[name]).abs().max()) for name in exact) > 1e-4


def attached(accelerating: accelerate.Accelerator) -> gc.Engine:
    model, optimizer = model_and_optimizer()
    return attach(accelerating, model, optimizer, "layer-wise", PLAN)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("backward", r"call engine\.backward\(losses\)"),
        ("clip_grad_norm_", r"Leave the call out; thresholds= of attach"),
        ("clip_grad_value_", r"Leave the call out; thresholds= of attach"),
    ],
)
def test_what_goes_past_the_engine_is_refused_with_the_replacement(name: str, instead: str) -> None:
    accelerating = accelerator()
    engine = attached(accelerating)
    inputs, labels = records()[:4]
    loss = F.cross_entropy(engine.model(inputs), labels)

    def call(loss: Tensor) -> None:
        method = getattr(accelerating, name)
        method(loss) if name == "backward" else method(engine.model.parameters(), 1.0)

    with pytest.raises(gc.PrivacyViolation, match=instead):
        call(loss)
    assert all(p.grad is None for p in engine.model.parameters())
    engine.detach()
    loss = F.cross_entropy(engine.model(inputs), labels)
    if name != "backward":
        loss.backward()
    call(loss)  # as ever
    assert all(p.grad is not None for p in engine.model.parameters())


def test_accumulation_by_the_accelerator_is_refused() -> None:
    with pytest.raises(gc.PrivacyViolation, match=r"gradient_accumulation_steps=2 leaves steps of the optimizer out"):
        attached(accelerator(gradient_accumulation_steps=2))


def test_a_scaler_is_refused() -> None:
    accelerating = accelerator()
    accelerating.scaler = torch.amp.GradScaler("cpu")  # what mixed_precision="fp16" makes on a GPU
    with pytest.raises(gc.PrivacyViolation, match=r"brings a scaler, .* Use mixed_precision='bf16'"):
        attached(accelerating)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate.Accelerator, "num_processes", property(lambda self: 2))
    with pytest.raises(gc.PrivacyViolation, match=r"accelerate runs 2 processes"):
        attached(accelerator())


def test_a_wrapped_optimizer_is_still_refused_by_the_engine_itself() -> None:
    model, optimizer = accelerator().prepare(*model_and_optimizer())
    with pytest.raises(TypeError, match="Attach the torch optimizer itself"):
        gc.attach(model, optimizer, "layer-wise", PLAN)
