"""What an error advises works: it is raised, its advice is followed to the letter, and what comes out is right.

Models, losses and passes are here; steps, states and batches in ``test_advice_runs``.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

import groupclip as gc
import oracle
from check_attached import attached
from check_engine import gradients, members
from groupclip.errors import CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from models import output_square

B = 4


def x64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def clipping(model: nn.Module, **options: Any) -> gc.Engine:
    return gc.attach(model, None, "layer-wise", None, **options)


def exact(
    model: nn.Module, engine: gc.Engine, batch: tuple[Any, ...], losses: Callable[..., Tensor] = output_square
) -> bool:
    """Whether the engine's sums are those of single samples. Detaches."""
    engine.discard()
    engine.backward(losses(model, batch))
    got = gradients(model)
    groups, thresholds = members(engine.partition), dict(engine.thresholds)
    engine.detach()
    want = oracle.clipped_sum(model, losses, batch, groups, thresholds=thresholds).sums
    assert any(bool(g.any()) for g in got.values())
    return all(torch.allclose(g.double(), want[name], rtol=1e-9, atol=1e-11) for name, g in got.items())


# ------------------------------------------------------------------ gradients that aren't training's


def adversarial(model: nn.Module, x: Tensor) -> Tensor:
    """The gradient of the loss by the inputs."""
    z = x.clone().requires_grad_()
    return torch.autograd.grad(model(z).square().mean(), z)[0]


def frozen_meanwhile(model: nn.Module, x: Tensor) -> Tensor:
    trains = [p for p in model.parameters() if p.requires_grad]
    for p in trains:
        p.requires_grad_(False)
    found = adversarial(model, x)
    for p in trains:
        p.requires_grad_(True)
    return found


def by_a_twin(model: nn.Module, x: Tensor) -> Tensor:
    twin = small()
    twin.load_state_dict(model.state_dict())
    return adversarial(twin, x)


@pytest.mark.parametrize("way", [frozen_meanwhile, by_a_twin])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_adversarial_examples(reduction: Any, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Every error on the way to them names the two ways that work, and training on them is exact."""
    model, x = small(), x64(B, 3)
    want = adversarial(model, x)
    engine = clipping(model, loss_reduction=reduction)
    advice = (
        r"freeze the parameters meanwhile .* or take it on another model of the same class, after twin\.load_state_dict"
    )
    with pytest.raises(PrivacyViolation, match=advice):
        adversarial(model, x)
    with pytest.raises(CoverageError, match=advice):
        adversarial(copy.deepcopy(model), x)
    assert torch.equal(way(model, x), want)
    assert all(p.grad is None for p in model.parameters())
    assert exact(model, engine, (x + 0.1 * want.sign(),))


def test_adversarial_examples_between_the_passes_of_a_logical_batch() -> None:
    """Freezing meanwhile leaves the sums of earlier micro-batches alone."""
    model, x, y = small(), x64(B, 3), x64(2, 3)
    engine = clipping(model)
    engine.backward(output_square(model, (x,)))
    frozen_meanwhile(model, y)
    engine.backward(output_square(model, (y,)))
    got = gradients(model)
    engine.detach()
    want = oracle.clipped_sum(
        model, output_square, (torch.cat([x, y]),), members(engine.partition), thresholds=dict(engine.thresholds)
    )
    assert all(torch.allclose(g, want.sums[name], rtol=1e-9) for name, g in got.items())


def test_a_private_run_on_adversarial_examples_has_its_epsilon() -> None:
    model, optimizer, engine = attached(small())
    data = torch.utils.data.TensorDataset(x64(40, 3))
    for logical in gc.poisson_batches(data, engine.mechanism or pytest.fail("no plan")):
        for (x,) in logical:
            engine.backward(output_square(model, (x + 0.1 * frozen_meanwhile(model, x).sign(),)))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.mechanism is not None
    assert engine.epsilon(delta=1e-5) == engine.mechanism.epsilon(delta=1e-5)


def test_a_copy_of_an_attached_model() -> None:
    model, x = small(), x64(B, 3)
    engine, twin = clipping(model), copy.deepcopy(model)
    with pytest.raises(
        CoverageError, match=r"call groupclip\.attach on the copy; to look at its outputs, torch\.no_grad"
    ):
        twin(x)
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
    assert exact(twin, clipping(twin), (x,))
    assert exact(model, engine, (x,))


# ------------------------------------------------------------------ what is attached


class HasScripted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(3, 3).double(), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch 2.14 says so by the second
@pytest.mark.parametrize("compile", [torch.jit.script, lambda module: torch.jit.trace(module, x64(B, 3))])
def test_scripted_models(compile: Callable[[nn.Module], Any]) -> None:
    eager, x = small(), x64(B, 3)
    scripted = compile(copy.deepcopy(eager))
    with pytest.raises(UnsupportedOperation, match=r"the model was scripted .* attach the eager module"):
        clipping(scripted)
    holder = HasScripted(scripted)
    with pytest.raises(UnsupportedOperation, match=r"module 'inner' was scripted .* or freeze its parameters"):
        clipping(holder)
    assert all(type(p) is nn.Parameter for p in holder.parameters())
    for p in scripted.parameters():
        p.requires_grad_(False)
    assert exact(holder, clipping(holder), (x,))
    assert exact(eager, clipping(eager), (x,))  # detaches
    torch.testing.assert_close(compile(eager)(x), eager(x))


class Complex(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.head = weight, nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        return self.head((x * weight).abs())


def test_complex_parameters() -> None:
    value = torch.view_as_complex(x64(3, 2))
    model = Complex(nn.Parameter(value))
    with pytest.raises(CoverageError, match=r"Freeze it, or hold its real and imaginary parts as one real parameter"):
        clipping(model)
    parts = Complex(nn.Parameter(torch.view_as_real(value).clone()))
    assert exact(parts, clipping(parts), (x64(B, 3),))
    model.weight.requires_grad_(False)
    engine = clipping(model)
    engine.backward(output_square(model, (x64(B, 3),)))
    assert model.weight.grad is None
    engine.detach()


class Special(nn.Parameter):
    pass


@pytest.mark.parametrize(
    ("odd", "plain", "advice"),
    [
        (lambda: Special(x64(3)), lambda: nn.Parameter(x64(3)), "use a plain nn.Parameter or freeze it"),
        (lambda: nn.Parameter(x64(0, 3)), None, r"freeze it with requires_grad_\(False\)"),
    ],
)  # fmt: skip
def test_odd_parameters(odd: Any, plain: Any, advice: str) -> None:
    class Scaled(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight, self.head = weight, nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * self.weight.sum(0).exp() if self.weight.dim() > 1 else x * self.weight)

    model = Scaled(odd())
    with pytest.raises(CoverageError, match=advice):
        clipping(model)
    model.weight.requires_grad_(False)
    assert exact(model, clipping(model), (x64(B, 3),))
    if plain is not None:
        model = Scaled(plain())
        assert exact(model, clipping(model), (x64(B, 3),))


def test_parameters_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = small()
    with pytest.raises(CoverageError, match=r"build or copy the model outside"):
        clipping(model)
    model = copy.deepcopy(model)
    assert exact(model, clipping(model), (x64(B, 3),))


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyLinear(4, dtype=torch.float64), nn.Tanh())
    with pytest.raises(ValueError, match="run the model once before this"):
        clipping(model)
    model(x64(B, 3))
    assert exact(model, clipping(model), (x64(B, 3),))


def test_a_gradient_from_before() -> None:
    model = small()
    output_square(model, (x64(B, 3),)).sum().backward()
    with pytest.raises(PrivacyViolation, match=r"optimizer\.zero_grad\(\) or model\.zero_grad\(\)\) before attaching"):
        clipping(model)
    model.zero_grad()
    assert exact(model, clipping(model), (x64(B, 3),))


def test_a_model_that_is_attached_already() -> None:
    model = small()
    engine = clipping(model)
    with pytest.raises(GroupClipError, match=r"call detach\(\) on the engine that holds it first"):
        clipping(model)
    engine.detach()
    assert exact(model, clipping(model), (x64(B, 3),))


def test_batch_normalisation() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    with pytest.raises(PrivacyViolation, match=r"replace it by GroupNorm, or put its modules in eval\(\) mode"):
        clipping(model)
    grouped = nn.Sequential(model[0], nn.GroupNorm(2, 4).double(), model[2])
    assert exact(grouped, clipping(grouped), (x64(B, 3),))
    model[1].eval()
    engine = clipping(model)
    model.train()
    with pytest.raises(PrivacyViolation, match=r"put its modules in eval\(\) mode"):
        model(x64(B, 3))
    model[1].eval()
    assert exact(model, engine, (x64(B, 3),))


def test_instance_normalisation_that_keeps_statistics() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.InstanceNorm1d(3, affine=True, track_running_stats=True)).double()
    with pytest.raises(PrivacyViolation) as refused:
        clipping(model)
    assert "track_running_stats=False" in str(refused.value)
    model = nn.Sequential(model[0], nn.InstanceNorm1d(3, affine=True, track_running_stats=False).double())
    assert exact(model, clipping(model), (x64(B, 2, 6),))


@pytest.mark.parametrize("change", ["freeze", "attach again"])
def test_a_parameter_that_came_later(change: str) -> None:
    model, x = small(), x64(B, 3)
    model[2].requires_grad_(False)
    engine = clipping(model)
    model[2].requires_grad_(True)
    with pytest.raises(CoverageError, match=r"Freeze it, or detach the engine and attach again with a new partition"):
        model(x)
    if change == "freeze":
        model[2].requires_grad_(False)
    else:
        engine.detach()
        engine = clipping(model)
    assert exact(model, engine, (x,))


# ------------------------------------------------------------------ losses and what the model is called with


class Sums(nn.Module):
    """Samples of unequal length, as a list [T_i, 3] or padded [B, T, 3] with a mask [B, T]: one loss each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1).double()

    def forward(self, x: Any, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return torch.stack([self.layer(t).tanh().sum() for t in x])
        return (self.layer(x).tanh()[..., 0] * mask).sum(1)


def test_a_list_of_samples_of_unequal_length() -> None:
    samples = [x64(5, 3), x64(2, 3), x64(4, 3)]
    model = Sums()
    engine = clipping(model)
    found = r"dimension 0 isn't the sample.* the first tensor, here of shape \(5, 3\); others: \(2, 3\), \(4, 3\)\."
    with pytest.raises(UnsupportedOperation, match=rf"{found}.* pad_sequence for a list of samples") as refused:
        engine.backward(model(samples))
    assert "view(" not in str(refused.value)
    with torch.no_grad():
        plain = model(samples)
    padded = pad_sequence(samples, batch_first=True)
    mask = pad_sequence([torch.ones(len(s), dtype=torch.float64) for s in samples], batch_first=True)
    torch.testing.assert_close(model(padded, mask).detach(), plain)
    assert exact(model, engine, (padded, mask), lambda model, batch: model(*batch))


class Pools(nn.Module):
    """The mean over positions, by a pooling whose last dimension is taken away: by name, or with whatever else is 1."""

    def __init__(self, *dim: int) -> None:
        super().__init__()
        self.dim, self.layer = dim, nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.adaptive_avg_pool1d(x.transpose(1, 2), 1).squeeze(*self.dim)).tanh()


def test_a_squeeze_that_takes_the_batch_of_one_away() -> None:
    model, batch = Pools(), x64(4, 5, 3)
    engine = clipping(model)
    with pytest.raises(UnsupportedOperation, match=r"isn't the sample.* x\.squeeze\(-1\) in the place of x\.squeeze\(\)"):
        model(batch)
    engine.detach()
    advised = Pools(-1)
    advised.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(advised(batch), model(batch))
    engine = clipping(advised)
    assert exact(advised, engine, (batch,), lambda model, batch: model(batch[0]).square().sum(1))


def test_a_list_whose_losses_are_a_multiple_of_its_first() -> None:
    """10 losses of 5, 2 and 3 rows: no reshaping into 5 samples is advised."""
    model = Sums()
    engine = clipping(model)
    with pytest.raises(UnsupportedOperation, match=r"dimension 0 isn't the sample.* pad_sequence for a list") as refused:
        engine.backward(torch.cat([model.layer(t).tanh()[:, 0] for t in samples_of(model, 5, 2, 3)]))
    assert "view(" not in str(refused.value)
    engine.detach()


def samples_of(model: nn.Module, *lengths: int) -> list[Tensor]:
    """Samples with which the model was called."""
    samples = [x64(n, 3) for n in lengths]
    model(samples)
    return samples


class Prompted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3).double()

    def forward(self, prompt: Tensor, x: Tensor) -> Tensor:
        return self.layer(prompt + x).square().sum(1)


def test_a_prompt_in_front_of_the_samples() -> None:
    model, prompt, x = Prompted(), x64(1, 2), x64(4, 2)
    engine = clipping(model)
    with pytest.raises(
        ValueError, match=r"4 entries, .*1 samples: .*\(1, 2\); others: \(4, 2\).*prompt\.expand"
    ) as refused:
        engine.backward(model(prompt, x))
    assert "view(" not in str(refused.value)
    assert exact(model, engine, (prompt.expand(len(x), -1), x), lambda model, batch: model(*batch))


@pytest.mark.parametrize("prompt", [1, 4])
def test_losses_with_the_samples_behind(prompt: int) -> None:
    """[T, B], and [1, B] of a model whose first tensor isn't the batch: no mean is advised that runs over samples."""
    model, batch = Prompted(), (x64(prompt, 2), x64(4, 2))

    def behind(model: nn.Module, batch: Any) -> Tensor:
        return model(*batch)[None].expand(3 if prompt == 4 else 1, -1)

    engine = clipping(model)
    with pytest.raises(ValueError, match=r"put the \d samples in front \(losses\.movedim\(k, 0\)\)") as refused:
        engine.backward(behind(model, batch))
    assert "flatten(1)" not in str(refused.value)
    assert ("prompt.expand" in str(refused.value)) == (prompt == 1)
    batch = batch[0].expand(4, -1), batch[1]
    assert exact(model, engine, batch, lambda model, batch: behind(model, batch).movedim(1, 0).mean(1))


def test_one_sample_is_never_made_of_several_losses() -> None:
    model = nn.Linear(3, 4).double()
    engine = clipping(model)
    with pytest.raises(ValueError, match=r"4 entries, .* 1 samples") as refused:
        engine.backward(model(x64(1, 3)).flatten())
    assert "view(" not in str(refused.value)
    engine.detach()


def test_a_loss_for_every_token() -> None:
    model, x = nn.Linear(3, 1).double(), x64(B, 5, 3)
    engine = clipping(model)
    with pytest.raises(ValueError, match=r"losses\.view\(4, -1\)\.mean\(1\), or weighed by its mask"):
        engine.backward(model(x).flatten())
    mask = (x64(B, 5) > -0.5).double()

    def followed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        losses, mask = model(batch[0]).square().flatten(), batch[1]
        return (losses.view(len(mask), -1) * mask).sum(1) / mask.sum(1)

    model(x)
    assert exact(model, engine, (x, mask), followed)
    engine = clipping(model)
    assert exact(model, engine, (x,), lambda model, batch: model(batch[0]).flatten().view(len(batch[0]), -1).mean(1))


@pytest.mark.parametrize("way", ["once for each", "one module"])
def test_two_views_of_each_sample(way: str) -> None:
    class Views(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.inner(torch.cat([a, b]))

    inner, a, b = small(), x64(B, 3), 2 * x64(B, 3) + 1
    engine = clipping(inner)

    def joined(model: nn.Module, batch: Any) -> Tensor:
        out = model(*batch) if isinstance(model, Views) else model(torch.cat(batch))
        one, two = out.split(len(batch[0]))
        return (one - two).square().sum(1)

    with pytest.raises(
        ValueError, match=r"has 2 rows .* call it once for each, or attach a module that takes them all"
    ):
        engine.backward(joined(inner, (a, b)))
    if way == "one module":
        engine.detach()
        model = Views(inner)
        assert exact(model, clipping(model), (a, b), joined)
    else:
        each = lambda model, batch: (model(batch[0]) - model(batch[1])).square().sum(1)  # noqa: E731
        assert exact(inner, engine, (a, b), each)


@pytest.mark.parametrize(
    ("wrong", "advice", "right"),
    [
        (lambda o, y: F.cross_entropy(o, y), "reduction='none'", lambda o, y: F.cross_entropy(o, y, reduction="none")),
        (lambda o, y: o[:, :1], r"use losses\.squeeze\(1\)", lambda o, y: o[:, :1].squeeze(1)),
        (
            lambda o, y: (o[:, :1] - y.double()).square(), "give both one shape",
            lambda o, y: (o[:, :1] - y.double().unsqueeze(1)).square().squeeze(1),
        ),
        (lambda o, y: o.square(), r"losses\.flatten\(1\)\.mean\(1\)", lambda o, y: o.square().flatten(1).mean(1)),
        (lambda o, y: o.detach().sum(1), "computed under no_grad", lambda o, y: o.sum(1)),
    ],
)  # fmt: skip
def test_losses_of_another_shape(wrong: Any, advice: str, right: Any) -> None:
    model, batch = small(), (x64(B, 3), torch.tensor([0, 1, 1, 0]))
    engine = clipping(model)
    with pytest.raises(ValueError, match=advice):
        engine.backward(wrong(model(batch[0]), batch[1]))
    assert exact(model, engine, batch, lambda model, batch: right(model(batch[0]), batch[1]))


@pytest.mark.parametrize("scale", [0.0, 1e39])
def test_a_loss_scale_that_the_losses_cannot_hold(scale: float) -> None:
    model, x = small().float(), x64(B, 3).float()
    engine = clipping(model)
    with pytest.raises(ValueError, match="use a smaller one"):
        engine.backward(output_square(model, (x,)), loss_scale=scale)
    engine.backward(output_square(model, (x,)), loss_scale=2.0**10)
    scaled = gradients(model)
    engine.discard()
    engine.backward(output_square(model, (x,)))
    assert all(torch.equal(g, scaled[name]) for name, g in gradients(model).items())
    engine.detach()


@pytest.mark.parametrize("way", ["engine.backward", "mean", "sum"])
def test_a_reduced_loss(way: Any) -> None:
    model, x = small(), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(
        PrivacyViolation, match=r"call engine\.backward\(losses\).*or attach with loss_reduction='mean' or 'sum'"
    ):
        output_square(model, (x,)).mean().backward()
    if way != "engine.backward":
        engine.detach()
        engine = clipping(model, loss_reduction=way)
        losses = output_square(model, (x,))
        (losses.mean() if way == "mean" else losses.sum()).backward()
        own = gradients(model)
        engine.discard()
        engine.backward(output_square(model, (x,)))
        assert all(torch.allclose(g, own[name]) for name, g in gradients(model).items())
    assert exact(model, engine, (x,))


# ------------------------------------------------------------------ passes


@pytest.mark.parametrize("way", ["sum", "again"])
def test_a_second_backward(way: str) -> None:
    model, x = small(), x64(B, 3)
    engine = clipping(model)
    out = model(x)
    engine.backward(out.square().sum(1))
    with pytest.raises(
        GroupClipError, match=r"Sum the losses and call engine\.backward once, or run the forward pass again"
    ):
        engine.backward(out.sum(1))
    engine.discard()
    if way == "again":
        engine.backward(model(x).square().sum(1))
        engine.backward(model(x).sum(1))
        assert all(p.grad is not None for p in model.parameters())
    assert exact(model, engine, (x,), lambda model, batch: (o := model(batch[0])).square().sum(1) + o.sum(1))


@pytest.mark.parametrize("way", ["the model", "forward_on", "no_grad"])
def test_a_part_of_the_model(way: str) -> None:
    model, x = small(), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(
        PrivacyViolation, match=r"call the model itself .* `with engine\.forward_on\(inputs\):`, .* torch\.no_grad"
    ):
        model[0](x)
    if way == "no_grad":
        with torch.no_grad():
            assert model[0](x).shape == (B, 4)
    if way == "forward_on":
        with engine.forward_on(x):
            losses = output_square(lambda x: model[2](torch.tanh(model[0](x))), (x,))  # type: ignore[arg-type]
        engine.backward(losses)
        own = gradients(model)
        engine.discard()
        engine.backward(output_square(model, (x,)))
        assert all(torch.allclose(g, own[name]) for name, g in gradients(model).items())
    assert exact(model, engine, (x,))


def test_a_model_that_is_called_without_a_tensor() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 3).double()

        def forward(self, ids: Any) -> Tensor:
            return self.table(torch.as_tensor(ids))

    model = Table()
    engine = clipping(model)
    with pytest.raises(PrivacyViolation, match="pass the batch as a tensor whose first dimension is the sample"):
        model([1, 2, 3])
    assert exact(model, engine, (torch.tensor([1, 2, 3]),))


def test_torch_func_around_the_model() -> None:
    model, x = small(), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(
        UnsupportedOperation, match=r"call it on the whole batch .* or do this under torch\.no_grad\(\)"
    ):
        torch.func.vmap(model)(x)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(model)(x), model(x))
    assert exact(model, engine, (x,))


def test_a_second_thread() -> None:
    """Evaluation under no_grad, from another thread, in the midst of a training pass."""
    evaluated: list[Any] = []

    class Pauses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            if threading.current_thread() is threading.main_thread() and torch.is_grad_enabled() and not evaluated:
                for way in (torch.enable_grad, torch.no_grad):
                    thread = threading.Thread(target=other, args=(way,))
                    thread.start()
                    thread.join()
            return self.layer(x)

    model, x = Pauses(), x64(B, 3)

    def other(way: Any) -> None:
        try:
            with way():
                evaluated.append(model(x))
        except PrivacyViolation as error:
            evaluated.append(str(error))

    engine = clipping(model)
    engine.backward(output_square(model, (x,)))
    assert "evaluate under torch.no_grad()" in evaluated[0]
    assert isinstance(evaluated[1], Tensor)
    assert exact(model, engine, (x,))


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


class Scales(nn.Module):
    def __init__(self, scale: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.weight, self.scale = nn.Linear(3, 3).double(), nn.Parameter(x64(3)), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.first(x), self.weight)


@pytest.mark.parametrize("scale", [Hidden.apply, lambda x, w: Hidden.apply(x, 1 + w)])
@pytest.mark.parametrize("way", ["ordinary operations", "freeze"])
def test_a_function_of_ones_own(way: str, scale: Any) -> None:
    model, x = Scales(scale), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(GroupClipError, match=r"Use ordinary torch operations .* or freeze (it|the parameters)"):
        engine.backward(output_square(model, (x,)))
    if way == "freeze":
        engine.detach()
        model.weight.requires_grad_(False)
        engine = clipping(model)
    else:
        model.scale = lambda x, w: x * (1 + w)
    assert exact(model, engine, (x,))


def test_an_operation_in_place_on_what_depends_on_parameters() -> None:
    def in_place(x: Tensor, w: Tensor) -> Tensor:
        table = w + torch.zeros(3, 3, dtype=x.dtype)
        table.tanh_().mul_(2)
        return x @ table

    model, x = Scales(in_place), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(UnsupportedOperation, match=r"write it out of place"):
        model(x)
    model.scale = lambda x, w: x @ ((w + torch.zeros(3, 3, dtype=x.dtype)).tanh() * 2)
    assert exact(model, engine, (x,))


def test_a_tensor_that_is_kept_from_pass_to_pass() -> None:
    class Keeps(nn.Module):
        def __init__(self, keep: bool) -> None:
            super().__init__()
            self.weight, self.keep = nn.Parameter(x64(3, 3)), keep
            self.kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if not self.keep:
                return x @ self.weight.exp()
            if self.kept is None:
                self.kept = self.weight.exp()
            return x @ self.kept

    model, x = Keeps(keep=True), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(UnsupportedOperation, match="compute it anew in every forward pass"):
        for _ in range(2):
            engine.backward(output_square(model, (x,)))
    model.keep, model.kept = False, None
    assert exact(model, engine, (x,))


def test_backward_on_a_tensor_of_parameters_alone() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(x64(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.square().sum() * torch.ones(len(x), dtype=x.dtype)

    model, x = Constant(), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(GroupClipError, match=r"call engine\.backward\(losses\) with one loss per sample"):
        model(x).sum().backward()
    assert exact(model, engine, (x,), lambda model, batch: model(batch[0]))


@pytest.mark.filterwarnings("ignore:.*use_reentrant")
def test_a_group_that_a_checkpoint_cuts_in_two() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.reentrant = nn.Linear(3, 3).double(), nn.Linear(3, 3).double(), True

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.a, x.requires_grad_(), use_reentrant=self.reentrant)
            return checkpoint(self.b, torch.tanh(x), use_reentrant=self.reentrant)

    model, x = Checkpointed(), x64(B, 3)
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(UnsupportedOperation, match=r"use_reentrant=False"):
        engine.backward(output_square(model, (x,)))
    model.reentrant = False
    assert exact(model, engine, (x,))


def test_passes_over_other_numbers_of_samples() -> None:
    model, x = small(), x64(B, 3)
    engine = clipping(model)
    with pytest.raises(PrivacyViolation, match="each loss must come from forward passes over the same samples"):
        engine.backward(model(x[:2]).sum() * torch.ones(B, dtype=x.dtype) + model(x).sum(1))
    assert exact(model, engine, (x,), lambda model, batch: model(batch[0]).sum(1) + model(2 * batch[0]).sum(1))


def test_losses_from_before() -> None:
    model, x = small(), x64(B, 3)
    losses = output_square(model, (x,))
    engine = clipping(model)
    model(x)
    with pytest.raises(GroupClipError, match="a pass from before attach has to be made again"):
        engine.backward(losses)
    assert exact(model, engine, (x,))


def test_models_of_two_engines() -> None:
    x = x64(B, 3)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.one.weight + self.two.weight)

    model = Both()
    parts = clipping(model.one), clipping(model.two)
    with (
        pytest.raises(GroupClipError, match="attach one model that holds both"),
        parts[0].forward_on(x),
        parts[1].forward_on(x),
    ):
        model(x)
    for engine in parts:
        engine.detach()
    assert exact(model, clipping(model), (x,))


def test_an_engine_that_is_detached() -> None:
    model, x = small(), x64(B, 3)
    engine = clipping(model)
    engine.detach()
    with pytest.raises(GroupClipError, match=r"call groupclip\.attach again"):
        engine.backward(output_square(model, (x,)))
    assert exact(model, clipping(model), (x,))


# ------------------------------------------------------------------ gradients inside the model


class Forces(nn.Module):
    """Returns an energy of each sample and its gradient by the sample: forces, a score, what a gradient penalty is of."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.net = way, small()

    def energy(self, x: Tensor) -> Tensor:
        return self.net(x).square().sum(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "torch.func.grad":
            found = torch.func.grad(lambda t: self.energy(t).sum())(x)
        elif self.way == "torch.func.vjp":
            energy, pull = torch.func.vjp(self.energy, x)
            found = pull(torch.ones_like(energy))[0]
        elif self.way == "of a hidden layer":
            h = self.net[0](x)
            found = torch.autograd.grad(self.net[2](h.tanh()).square().sum(), h, create_graph=True)[0][:, :3]
        else:
            x = x.detach().requires_grad_()
            found = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]
        return found + self.energy(x)[:, None]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("way", ["torch.func.grad", "torch.func.vjp", "torch.autograd.grad", "of a hidden layer"])
def test_gradients_inside_the_model(way: str, reduction: Any) -> None:
    """By torch.func on all samples at once; by autograd, which vmap can't follow, one sample at a time. Both are exact."""
    model, x = Forces(way), x64(B, 3)
    engine = clipping(model, loss_reduction=reduction)
    losses = output_square(model, (x,))
    if reduction == "none":
        engine.backward(losses)
    else:
        (losses.mean() if reduction == "mean" else losses.sum()).backward()
    got = gradients(model)
    groups, thresholds = members(engine.partition), dict(engine.thresholds)
    engine.detach()
    model.way = way if way == "of a hidden layer" else "torch.autograd.grad"
    want = oracle.clipped_sum(model, output_square, (x,), groups, thresholds=thresholds).sums
    assert all(bool(g.any()) for name, g in got.items() if name != "net.2.bias")
    assert all(torch.allclose(g, want[name], rtol=1e-9, atol=1e-11) for name, g in got.items())


@pytest.mark.parametrize("model", [Forces("torch.func.grad"), small()])
def test_a_penalty_on_gradients_that_is_computed_outside_is_exact_or_refused(model: nn.Module) -> None:
    def penalised(m: Any, batch: tuple[Any, ...]) -> Tensor:
        z = batch[0].clone().requires_grad_()
        out = m(z)
        return out.square().sum(1) + torch.autograd.grad(out.sum(), z, create_graph=True)[0].square().sum(1)

    x = x64(B, 3)
    engine = clipping(model)
    try:
        engine.backward(penalised(model, (x,)))
    except GroupClipError as refused:
        assert re.search(r"torch\.func\.grad|engine\.per_sample|engine\.backward", str(refused))
        return
    got = gradients(model)
    groups, thresholds = members(engine.partition), dict(engine.thresholds)
    engine.detach()
    want = oracle.clipped_sum(model, penalised, (x,), groups, thresholds=thresholds).sums
    assert all(torch.allclose(g, want[name], rtol=1e-9, atol=1e-11) for name, g in got.items())


def test_gradients_of_parameters_inside_the_model() -> None:
    """A penalty on a sample's own gradient."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: Tensor) -> Tensor:
            found = torch.autograd.grad(self.net(x).tanh().sum(), list(self.net.parameters()), create_graph=True)
            return self.net(x) + torch.stack([g.square().sum() for g in found]).sum()

    model, x = Inner(), x64(B, 3)
    assert exact(model, clipping(model), (x,))
