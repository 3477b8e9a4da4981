"""The model under the engine is copied, loaded, cast, parametrised, called with other weights: right, or refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import groupclip as gc
from check_attached import ENTRY, attached, plan, train
from check_engine import Batch, Clipped, clipped_by_engine, faults, gradients, grouped, inexact, members
from groupclip.autograd.tensors import PrivateParameter
from groupclip.errors import CoverageError, PrivacyViolation, UnsupportedOperation
from oracle import clipped_sum

REPLACED = r"'0\.weight' is trainable but in no group: it was unfrozen, added or replaced after attach"


def exact(model: nn.Module, engine: gc.Engine, batch: Batch) -> bool:
    """Whether the engine (layer-wise, abadi, R_m = 0.2, no mechanism) still agrees with single samples."""
    groups = engine.partition
    plain = ENTRY.model(torch.float64)
    plain.load_state_dict(model.state_dict())
    thresholds = dict.fromkeys(groups, 0.2)
    want = clipped_sum(plain, ENTRY.losses, batch, members(groups), "abadi", thresholds)
    engine.backward(ENTRY.losses(model, batch))
    got = Clipped(gradients(model), engine.unsafe_norms())
    engine.discard()
    tolerance = 1e-10 if next(model.parameters()).dtype == torch.float64 else 1e-5
    return faults(got, want, groups, thresholds, tolerance) == []


def clipping(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, gc.Engine]:
    model = ENTRY.model(dtype)
    return model, gc.attach(model, None, "layer-wise", None, clip="abadi", thresholds=[0.2] * 3)


# ------------------------------------------------------------------ copies and averages


def test_an_average_of_the_weights() -> None:
    """An EMA follows the private model, evaluates, and holds the average of what it saw; it is no way around the engine."""
    model, optimizer, engine = attached(ENTRY.model(torch.float64))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    want = [p.detach().clone() for p in model.parameters()]
    for step in range(3):
        train(model, optimizer, engine, 1, first=step)
        average.update_parameters(model)
        now = [p.detach().clone() for p in model.parameters()]  # torch takes the first model as it is
        want = now if step == 0 else [0.9 * w + 0.1 * p for w, p in zip(want, now, strict=True)]
    for p, w in zip(average.parameters(), want, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)
    x, _ = ENTRY.batch(4, torch.float64)
    with torch.no_grad():
        assert average(x).shape == (4, 3)
    with pytest.raises(CoverageError, match="deep copy of an attached one"):
        average(x)
    assert engine.ledger is not None and engine.ledger.steps == 3


def test_a_copy_and_its_original_train_apart() -> None:
    model, optimizer, engine = attached(ENTRY.model(torch.float64))
    train(model, optimizer, engine, 1)
    twin, other, second = attached(copy.deepcopy(model))
    before = [p.detach().clone() for p in model.parameters()]
    train(twin, other, second, 2)
    assert all(torch.equal(p.detach(), q) for p, q in zip(model.parameters(), before, strict=True))
    assert engine.ledger is not None and engine.ledger.steps == 1
    assert second.ledger is not None and second.ledger.steps == 2
    train(model, optimizer, engine, 1)


# ------------------------------------------------------------------ loaded, moved, cast


@pytest.mark.parametrize("between", [False, True])
def test_weights_loaded_after_attach(between: bool) -> None:
    """In place, they are the model's; also between steps."""
    model, engine = clipping()
    batch = ENTRY.batch(5, torch.float64)
    if between:
        assert exact(model, engine, batch)
    model.load_state_dict(ENTRY.model(torch.float64, seed=9).state_dict())
    assert exact(model, engine, batch)


def test_weights_that_replace_the_parameters() -> None:
    """``assign=True`` puts new parameters into the model: nobody would clip them."""
    model, engine = clipping()
    model.load_state_dict(ENTRY.model(torch.float64, seed=9).state_dict(), assign=True)
    with pytest.raises(CoverageError, match=REPLACED):
        ENTRY.losses(model, ENTRY.batch(4, torch.float64))
    engine.detach()
    gc.attach(model, None, "layer-wise", None)


@pytest.mark.parametrize(
    "cast", [lambda m: m.float(), lambda m: m.float().double(), lambda m: m.to("cpu", torch.float32)]
)
@pytest.mark.parametrize("used", [False, True])
def test_cast_after_attach(cast, used: bool) -> None:
    """With and without an accumulated gradient; autograd's record of the parameter is renewed."""
    model, engine = clipping()
    if used:
        assert exact(model, engine, ENTRY.batch(5, torch.float64))
    cast(model)
    dtype = next(model.parameters()).dtype
    assert exact(model, engine, ENTRY.batch(5, dtype))


@pytest.mark.parametrize("to", [torch.float64, torch.bfloat16])
def test_cast_with_an_optimizer(to: torch.dtype) -> None:
    """The optimizer goes on: the parameters are the same objects, whatever their dtype. Its moments stay as they were."""
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    model.to(to)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.state.clear()  # torch's own optimizers don't cast their moments
    train(model, optimizer, engine, 1, first=1)
    assert all(
        p.dtype == to and not torch.equal(p.detach(), q) for p, q in zip(model.parameters(), before, strict=True)
    )
    assert engine.ledger is not None and engine.ledger.steps == 2


def test_cast_between_backward_and_step() -> None:
    """The clipped sum is cast with its parameter, and is still what the backward pass left."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    model.double()
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1


@pytest.fixture(params=["overwrite", "swap"])
def conversion(request: pytest.FixtureRequest) -> Iterator[str]:
    """Torch's two other ways to cast a module."""
    change = getattr(torch.__future__, f"set_{request.param}_module_params_on_conversion")
    change(True)
    yield request.param
    change(False)


def test_other_ways_of_casting(conversion: str) -> None:
    """New parameters are refused; swapped ones are the old with another inside."""
    model, engine = clipping()
    model.float()
    batch = ENTRY.batch(5)
    if conversion == "overwrite":
        with pytest.raises(CoverageError, match=REPLACED):
            ENTRY.losses(model, batch)
        return
    assert all(type(p) is nn.Parameter for p in model.parameters())  # until the next pass
    assert exact(model, engine, batch)
    assert all(type(p) is PrivateParameter for p in model.parameters())


def test_swapped_parameters_are_still_watched(conversion: str) -> None:
    """The hook that sees unclipped gradients goes with the parameter."""
    if conversion == "overwrite":
        pytest.skip("refused, see above")

    class Around(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, w: Tensor) -> Tensor:  # type: ignore[override]
            ctx.save_for_backward(x)
            return x @ w.t()

        @staticmethod
        def backward(ctx, g: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
            return None, g.t() @ ctx.saved_tensors[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(Around.apply(x, self.a.weight)) + self.a.bias.sum()  # pyright: ignore

    model = Model()
    engine = gc.attach(model, None, "layer-wise", None)
    model.double()
    with pytest.raises(CoverageError, match=r"a gradient reached parameter 'a\.weight' that was not clipped"):
        engine.backward(model(torch.randn(4, 5).double()).square().sum(1))
    assert model.a.weight.grad is None


def test_to_the_meta_device() -> None:
    """Parameters without storage are new ones."""
    model, engine = clipping()
    model.to("meta")
    with pytest.raises(CoverageError, match=REPLACED):
        model(torch.randn(4, 5, device="meta"))
    engine.detach()
    with torch.device("meta"):
        empty = nn.Linear(5, 3)
    gc.attach(empty, None, "layer-wise", None)
    empty.to_empty(device="cpu")
    with pytest.raises(CoverageError, match="added or replaced after attach"):
        empty(torch.randn(4, 5))


def test_made_under_inference_mode() -> None:
    with torch.inference_mode():
        model = ENTRY.model()
    with pytest.raises(
        CoverageError, match=r"'0\.weight' was made under torch\.inference_mode\(\), so it can't be trained"
    ):
        attached(model)


def test_attach_detach_attach_in_other_styles() -> None:
    """Each engine is as if it were the first."""
    model, batch = ENTRY.model(torch.float64), ENTRY.batch(5, torch.float64)
    for style in ("layer-wise", "all-layer", "param-wise", "all-layer"):
        groups = grouped(model, style)
        thresholds = dict.fromkeys(groups, 0.2)
        want = clipped_sum(model, ENTRY.losses, batch, members(groups), "abadi", thresholds)
        got = clipped_by_engine(model, ENTRY.losses, batch, groups, "abadi", thresholds)
        assert faults(got, want, groups, thresholds, 1e-10) == []
        assert all(type(p) is nn.Parameter and p._backward_hooks in (None, {}) for p in model.parameters())
        assert all(not p._post_accumulate_grad_hooks for p in model.parameters())  # type: ignore[attr-defined]


# ------------------------------------------------------------------ other weights in the same modules


def test_functional_call_with_the_parameters_themselves() -> None:
    model, engine = clipping()
    batch = ENTRY.batch(5, torch.float64)
    own = dict(model.named_parameters())
    losses = nn.functional.cross_entropy(functional_call(model, own, (batch[0],)), batch[1], reduction="none")
    engine.backward(losses)
    got = gradients(model)
    engine.discard()
    engine.backward(ENTRY.losses(model, batch))
    assert all(torch.equal(g, got[n]) for n, g in gradients(model).items())


@pytest.mark.parametrize("others", ["leaves", "half of them"])
def test_functional_call_with_other_leaves(others: str) -> None:
    """Somebody's own copies that require gradients: they are outside the plan."""
    model, _ = clipping()
    copies = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    if others == "half of them":
        copies = {n: p if n.startswith("0") else model.get_parameter(n) for n, p in copies.items()}
    with pytest.raises(CoverageError, match=REPLACED):
        functional_call(model, copies, (torch.randn(4, 5).double(),))
    assert all(type(p) is PrivateParameter for p in model.parameters())


def test_functional_call_without_gradients() -> None:
    """Other weights to look at: no gradient, no engine."""
    model, engine = clipping()
    x = torch.randn(4, 5).double()
    other = ENTRY.model(torch.float64, seed=3)
    values = {n: p.detach() for n, p in other.named_parameters()}
    assert torch.equal(functional_call(model, values, (x,)), other(x))
    assert exact(model, engine, ENTRY.batch(5, torch.float64))


class Doubled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return 2 * torch.tanh(w)


def parametrised() -> nn.Module:
    model = ENTRY.model()
    parametrize.register_parametrization(model[0], "weight", Doubled())  # type: ignore[index]
    parametrize.register_parametrization(model[4], "bias", Doubled())  # type: ignore[index]
    return model


def test_parametrised_before_attach() -> None:
    assert inexact(parametrised(), ENTRY.batch(5), ENTRY.losses, ("all-layer", "layer-wise", "param-wise")) == []


def test_parametrised_after_attach() -> None:
    """Registering computes with the parameters, outside a pass."""
    model, engine = clipping()
    with pytest.raises(PrivacyViolation, match="a parameter was used outside a call of the model"):
        parametrize.register_parametrization(model[0], "weight", Doubled())  # type: ignore[index]
    engine.detach()


def test_parametrised_tensors_kept_over_passes() -> None:
    """``parametrize.cached`` keeps the first pass's tensor, whose gradient nobody would book."""
    model = parametrised().double()
    engine = gc.attach(model, None, "layer-wise", None)
    batch = ENTRY.batch(5, torch.float64)
    engine.backward(ENTRY.losses(model, batch))
    engine.discard()
    with parametrize.cached(), pytest.raises(UnsupportedOperation, match=r"in an earlier pass.*parametrize\.cached"):
        for _ in range(2):
            engine.backward(ENTRY.losses(model, batch))
            engine.discard()
    engine.backward(ENTRY.losses(model, batch))


# ------------------------------------------------------------------ a GAN


def test_a_private_discriminator_and_a_generator_without() -> None:
    """Only the discriminator sees data. Its engine counts one step a batch; the generator's losses go through it, frozen."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 5).double(), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    free = torch.optim.SGD(generator.parameters(), lr=0.1)
    private = torch.optim.SGD(critic.parameters(), lr=0.1)
    groups = gc.partition(critic, "layer-wise")
    thresholds = dict.fromkeys(groups, 0.3)
    engine = gc.attach(critic, private, groups, plan(sigma=0.0), clip="abadi", thresholds=thresholds)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        """One real and one made sample: what the critic says of both is one sample's loss."""
        return nn.functional.softplus(-model(batch[0])).squeeze(1) + nn.functional.softplus(model(batch[1])).squeeze(1)

    for step in range(3):
        real, z = torch.randn(8, 5).double(), torch.randn(8, 3).double()
        fake = generator(z).detach()
        twin = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        twin.load_state_dict(critic.state_dict())
        want = clipped_sum(twin, losses, (real, fake), members(groups), "abadi", thresholds)
        engine.backward(losses(critic, (real, fake)))
        assert faults(Clipped(gradients(critic), engine.unsafe_norms()), want, groups, thresholds, 1e-10) == []
        private.step()
        private.zero_grad()

        critic.requires_grad_(False)  # the generator's turn
        twin.load_state_dict(critic.state_dict())
        plain = torch.autograd.grad(nn.functional.softplus(-twin(generator(z))).mean(), list(generator.parameters()))
        nn.functional.softplus(-critic(generator(z))).mean().backward()
        for p, g in zip(generator.parameters(), plain, strict=True):
            torch.testing.assert_close(p.grad, g)
        free.step()
        free.zero_grad()
        critic.requires_grad_(True)
        assert all(p.grad is None for p in critic.parameters())
        assert engine.ledger is not None and engine.ledger.steps == step + 1


def test_a_generator_that_forgets_to_freeze_is_refused() -> None:
    """Its loss would reach the discriminator too, on a mean."""
    generator, critic = nn.Linear(3, 5), nn.Linear(5, 1)
    gc.attach(critic, torch.optim.SGD(critic.parameters(), lr=0.1), "layer-wise", plan())
    with pytest.raises(PrivacyViolation, match="backward was called on a reduced loss"):
        critic(generator(torch.randn(4, 3))).mean().backward()
    assert all(p.grad is None for p in critic.parameters())
