"""What goes into the model: any nesting, any memory layout; models that are attached in part, or hooked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import ENTRIES, Clipped, clipped_by_engine, faults, gradients, inexact, members
from groupclip.autograd.tensors import PrivateParameter
from groupclip.errors import CoverageError, PrivacyViolation, UnsupportedOperation

CNN = ENTRIES["cnn-groupnorm"]


def classify(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "one sample expanded": lambda x: x[:1].expand(len(x), -1, -1, -1),
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "samples last in memory": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "a slice of the data set": lambda x: torch.cat([x, x, x])[len(x) : 2 * len(x)],
    "a window of a larger image": lambda x: F.pad(x, (1, 1, 1, 1))[:, :, 1:-1, 1:-1],
}


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("memory", MEMORY)
def test_inputs_of_any_memory_layout(memory: str, size: int) -> None:
    x, labels = CNN.batch(size, torch.float64)
    assert inexact(CNN.model(), (MEMORY[memory](x), labels), classify, styles=("layer-wise",)) == []


def test_parameters_of_another_memory_format() -> None:
    x, labels = CNN.batch(4, torch.float64)
    model = CNN.model().to(memory_format=torch.channels_last)
    assert inexact(model, (x.to(memory_format=torch.channels_last), labels), classify) == []


@dataclass(frozen=True)
class Container:
    ids: Tensor
    mask: Tensor | None = None


class Hidden:
    """An object of any other class, which isn't looked into."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


class Reads(nn.Module):
    """Tokens and a mask, from wherever they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        found = {**kwargs}
        for value in args:
            found |= value if isinstance(value, dict) else vars(value) if isinstance(value, (Container, Hidden)) else {}
        if args and isinstance(args[0], (Tensor, tuple)):
            found = dict(zip(("ids", "mask"), args[0] if isinstance(args[0], tuple) else args, strict=False))
        x = torch.tanh(self.words(found["ids"]))
        return self.head(x if found.get("mask") is None else x * found["mask"].unsqueeze(-1))


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "positional": lambda m, ids, mask: m(ids, mask),
    "keywords": lambda m, ids, mask: m(ids=ids, mask=mask),
    "a dictionary": lambda m, ids, mask: m({"ids": ids, "mask": mask}),
    "a dictionary in keywords": lambda m, ids, mask: m(**{"mask": None, "ids": ids}),
    "a dataclass": lambda m, ids, mask: m(Container(ids, mask)),
    "a tuple": lambda m, ids, mask: m((ids, mask)),
    "with a scalar first": lambda m, ids, mask: m({"step": torch.tensor(3), "ids": ids, "mask": mask}),
}


@pytest.mark.parametrize("way", WAYS)
def test_inputs_of_any_nesting(way: str) -> None:
    batch = (*ENTRIES["padding-idx"].batch(3), torch.rand(3, 6, generator=torch.Generator().manual_seed(0)))
    losses = lambda m, b: WAYS[way](m, *b).square().mean((1, 2))  # noqa: E731
    assert inexact(Reads(), batch, losses) == []


def test_inputs_that_hide_their_tensors() -> None:
    model = Reads()
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(
        PrivacyViolation, match=r"without any tensor that has a batch dimension.*pass the batch as a tensor"
    ):
        model(Hidden(torch.zeros(3, 6, dtype=torch.long)))
    engine.detach()


def test_a_first_input_that_is_no_batch() -> None:
    """The batch is the first tensor's dimension 0; what else it is shows in the outputs."""
    model = Reads()
    engine = gc.attach(model, None, "all-layer", None)
    ids = torch.zeros(3, 6, dtype=torch.long)
    with pytest.raises(UnsupportedOperation, match=r"dimension 0 isn't the sample.*first tensor, here of shape \(6,\)"):
        model({"mask": torch.ones(6), "ids": ids})
    engine.detach()


# ------------------------------------------------------------------ parts of a model


class Tuned(nn.Module):
    """A frozen body and a head that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).square().flatten(1).sum(1)


@pytest.mark.parametrize("shape", [(4, 3), (4, 4, 3)])
def test_a_part_that_is_attached_alone(shape: tuple[int, ...]) -> None:
    """The engine sees the head's inputs; the whole model is called as ever."""
    torch.manual_seed(0)
    model, batch = Tuned().double(), (torch.randn(shape, dtype=torch.float64),)
    groups = gc.partition(model, "param-wise")
    want = oracle.clipped_sum(model, lambda m, b: m(*b), batch, members(groups), "abadi", dict.fromkeys(groups, 0.1))
    engine = gc.attach(model.head, None, "param-wise", None, clip="abadi", thresholds=[0.1] * 4)
    engine.backward(model(*batch))
    sums = gradients(model)
    norms = {f"head.{group}": n for group, n in engine.unsafe_norms().items()}
    assert faults(Clipped(sums, norms), want, groups, dict.fromkeys(groups, 0.1), 1e-10) == []


@pytest.mark.parametrize("first", [2, 6])
def test_parts_called_one_by_one_inside_forward_on(first: int) -> None:
    """A loop that calls layers itself says what the batch is; the batch before was of another size."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), (torch.randn(6, 3).double(),)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return model[2](torch.tanh(model[0](*batch))).square().sum(1)  # type: ignore[index]

    groups = gc.partition(model, "layer-wise")
    want = clipped_by_engine(model, lambda m, b: m(*b).square().sum(1), batch, groups)
    for reduction in ("none", "mean"):
        engine = gc.attach(model, None, groups, None, loss_reduction=reduction)  # type: ignore[arg-type]
        model(batch[0][:first])
        with engine.forward_on(batch[0]):
            if reduction == "mean":  # one number tells nothing of single samples
                with pytest.raises(PrivacyViolation, match=r"loss_reduction='none' and call engine\.backward\(losses\)"):
                    losses(model, batch)
                engine.detach()
                continue
            found = losses(model, batch)
        engine.backward(found)
        for n, g in gradients(model).items():
            torch.testing.assert_close(g, want.sums[n], rtol=0, atol=1e-12)
        engine.discard()
        engine.backward(engine.per_sample(lambda x: losses(model, (x,)), batch[0]))
        for n, g in gradients(model).items():
            torch.testing.assert_close(g, want.sums[n], rtol=0, atol=1e-12)
        engine.detach()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_parts_called_one_by_one_under_a_declared_reduction_are_refused(reduction: Any) -> None:
    """The loss doesn't say how many samples it is of, and the last call of the model may have been another batch."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    engine = gc.attach(model, None, "layer-wise", None, loss_reduction=reduction)
    model(torch.randn(2, 3))
    with pytest.raises(PrivacyViolation, match=r"outside a call of the model.*with engine\.forward_on\(inputs\)"):
        model[2](torch.tanh(model[0](torch.randn(6, 3))))
    engine.detach()


class OwnLoss(nn.Module):
    """Computes its loss itself, as models of transformers do; ``squeezed`` is one number for a batch of one as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.layer(x)
        return {"loss": out.square().mean(), "squeezed": out.squeeze(), "count": torch.tensor(1) + 0 * x.argmax()}


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_models_own_loss_is_the_reduction_that_was_declared(reduction: Any, first: int) -> None:
    """One number, as for a batch: ``loss.backward()`` gives the clipped sums of its samples' losses. Whatever batch came first."""
    torch.manual_seed(0)
    model, x = OwnLoss(), torch.randn(5, 3)
    groups = gc.partition(model, "all-layer")
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=0.5)
    losses = model(x)["loss"]
    assert losses.shape == (5,)
    engine.backward(losses)
    want, each = gradients(model), losses.detach()
    engine.detach()
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=0.5, loss_reduction=reduction)
    for batch in (x[:first], x):
        found = model(batch)
        assert found["loss"].shape == () and found["squeezed"].shape == (len(batch),)
        found["loss"].backward()
        if not len(batch):
            assert all(not g.any() for g in gradients(model).values())
        engine.discard()
    torch.testing.assert_close(model(x)["loss"].detach(), each.mean() if reduction == "mean" else each.sum())
    model(x)["loss"].backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, want[name])
    assert engine.per_sample(lambda x: model(x)["loss"], x).shape == (5,)  # a function's is one for each sample
    engine.detach()


# ------------------------------------------------------------------ hooks and optimizers of the user


def test_hooks_on_parameters_run_as_ever() -> None:
    model, seen = nn.Linear(3, 2), []
    engine = gc.attach(model, None, "all-layer", None)
    model.weight.register_hook(lambda grad: seen.append(("hook", type(grad), grad.shape)))
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad is not None)))
    engine.backward(model(torch.randn(4, 3)).square().sum(1))
    assert seen == [("hook", Tensor, (2, 3)), ("after", True)]


def test_a_hook_from_before_that_changes_gradients_is_seen() -> None:
    """It would come between the clipped sum and the parameter."""
    model = nn.Linear(3, 2)
    model.weight.register_hook(lambda grad: grad * 2)
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(CoverageError, match=r"a gradient reached parameter 'weight' that was not clipped"):
        engine.backward(model(torch.randn(4, 3)).square().sum(1))
    assert model.weight.grad is None


class Records(torch.optim.Optimizer):
    """Notes the class of the parameters that it is shown; raises if told to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})
        self.shown: list[type] = []
        self.raises = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.shown = [type(p) for group in self.param_groups for p in group["params"]]
        if self.raises:
            raise OSError("no more room")


def test_optimizers_are_shown_plain_parameters() -> None:
    """They take their fast paths for exactly nn.Parameter, and a Python loop over dispatched operations for others."""
    model = nn.Linear(3, 2)
    optimizer = Records(model)
    engine = gc.attach(model, optimizer, "all-layer", gc.Mechanism(
        dataset_size=10, expected_batch_size=4, steps=5, noise_multiplier=1.0
    ))  # fmt: skip
    engine.backward(model(torch.randn(4, 3)).square().sum(1))
    optimizer.step()
    assert optimizer.shown == [nn.Parameter, nn.Parameter]
    assert [type(p) for p in model.parameters()] == [PrivateParameter, PrivateParameter]


def test_a_step_that_raises_counts_and_the_run_goes_on() -> None:
    """Its noisy gradient may have been seen; the next pass finds the model attached."""
    model = nn.Linear(3, 2)
    optimizer = Records(model)
    engine = gc.attach(model, optimizer, "all-layer", gc.Mechanism(
        dataset_size=10, expected_batch_size=4, steps=5, noise_multiplier=1.0
    ))  # fmt: skip
    optimizer.raises = True
    engine.backward(model(torch.randn(4, 3)).square().sum(1))
    with pytest.raises(OSError, match="no more room"):
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1
    optimizer.raises = False
    optimizer.zero_grad()
    engine.backward(model(torch.randn(4, 3)).square().sum(1))
    assert [type(p) for p in model.parameters()] == [PrivateParameter, PrivateParameter]
    optimizer.step()
    assert engine.ledger.steps == 2
