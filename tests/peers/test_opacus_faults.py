"""What goes wrong in Opacus (its 1.6.0), as tests of the right behaviour. ``docs/peers.md`` lists them: O1 to O15 are
silent there, L1 to L16 loud.

Each test says what the peer does. ``exact`` compares with single samples in float64, in three clipping styles.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peer_models import (
    Applies,
    TwoTowers,
    at_most_r,
    exact,
    is_noise,
    noise_of_a_step,
    numbers,
    plan,
    private,
    same_in_micro_batches,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import groupclip as gc
import oracle
from check_engine import ENTRIES, clipped_by_engine, gradients, members
from groupclip.errors import CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from models import output_square

MLP = ENTRIES["mlp"]
IDS = torch.randint(7, (5, 4), generator=torch.Generator().manual_seed(0))


# ---------------------------------------------------------------- silent in Opacus


def logistic(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out = model(*batch)
    return F.binary_cross_entropy_with_logits(out, torch.ones_like(out), reduction="none").squeeze(1)


def test_o01_losses_with_a_trailing_dimension() -> None:
    """Opacus's ghost mode broadcasts [B, 1] losses with [B] factors to [B, B]: nothing is clipped (3.8e7 for a bound of 32)."""
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), numbers(5, 3), torch.zeros(5)
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(ValueError, match=r"shape \(5, 1\), .*: use losses\.squeeze\(1\)"):
        engine.backward(F.mse_loss(model(x), y[:, None], reduction="none"))
    pairs = (model(x) - y).square()  # what nn.MSELoss makes of it, with a warning
    with pytest.raises(ValueError, match=r"shape \(5, 5\), .*every output met every target"):
        engine.backward(pairs)
    assert all(p.grad is None for p in model.parameters())
    engine.detach()
    assert exact(model, x, losses=logistic)
    assert at_most_r(model.float(), x, losses=logistic)


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.MSELoss(reduction="sum"), nn.L1Loss()])
def test_o02_a_criterion_that_reduces(criterion: nn.Module) -> None:
    """Opacus's adaptive engine leaves the loss a scalar: clipped as one sample, 3102 for a bound of 32."""
    model, x = nn.Linear(3, 2), numbers(5, 3)
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(ValueError, match=r"shape \(\), .*one loss per sample"):
        engine.backward(criterion(model(x), torch.zeros(5, 2)))


def test_o03_one_vector_of_thresholds_for_clipping_and_noise() -> None:
    """Opacus's schedulers halve the bound of the noise and not that of the clipping: too little noise."""
    model = MLP.model()
    optimizer, engine = private(model, style="layer-wise")
    with pytest.raises(TypeError):
        engine.thresholds["0"] = 0.1  # type: ignore[index]
    for fact in ("thresholds", "mechanism", "clip", "noise", "partition", "ledger"):
        with pytest.raises(AttributeError, match=f"engine.{fact} can't be changed"):
            setattr(engine, fact, None)
    engine.backward(MLP.losses(model, tuple(t[:1] for t in MLP.batch(1))))
    within = math.sqrt(sum(r**2 for r in engine.thresholds.values()))
    assert sum(g.square().sum() for g in gradients(model).values()).sqrt() <= within
    assert engine.noise_std == pytest.approx(within)
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_o04_unfreezing_after_attach() -> None:
    """Opacus's ghost mode leaves parameters that are unfrozen later unclipped: 1649 times the bound."""
    model = MLP.model()
    model[0].requires_grad_(False)  # type: ignore[index]
    _, engine = private(model)
    engine.backward(MLP.losses(model, MLP.batch(5)))
    model[0].requires_grad_(True)  # type: ignore[index]
    with pytest.raises(CoverageError, match=r"'0\.weight' is trainable but in no group"):
        model(MLP.batch(5)[0])
    assert model[0].weight.grad is None  # type: ignore[index]


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_o04_freezing_after_attach(style: str) -> None:
    """Opacus's ghost mode goes on counting the last norm of what was frozen. Frozen and thawed again, all is exact."""
    model = MLP.model(torch.float64)
    batch = MLP.batch(5, torch.float64)
    groups = gc.partition(model, style)
    engine = gc.attach(model, None, groups, None, clip="abadi")
    for frozen in ((), ("0.weight", "2.weight"), ("4.bias",), ()):
        for name, p in model.named_parameters():
            p.requires_grad_(name not in frozen)
        engine.backward(MLP.losses(model, batch))
        plain = MLP.model(torch.float64)
        for name, p in plain.named_parameters():
            p.requires_grad_(name not in frozen)
        left = {g: [n for n in names if n not in frozen] for g, names in members(groups).items()}
        left = {g: names for g, names in left.items() if names}
        want = oracle.clipped_sum(plain, MLP.losses, batch, left, "abadi", engine.thresholds)
        assert all(torch.allclose(g, want.sums[n], atol=1e-10) for n, g in gradients(model).items())
        assert all(torch.allclose(engine.unsafe_norms()[g], n) for g, n in want.norms.items())
        engine.discard()


class Alternates(nn.Module):
    """A layer that every second pass leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)
        self.whole = True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.always(x))
        return self.sometimes(x) if self.whole else x


def test_o04_a_layer_used_on_alternate_steps() -> None:
    """Opacus's ghost mode adds its norm of the step before (1.117 where 0.994 is right)."""
    model, batch = Alternates().double(), (numbers(5, 4).double(),)
    groups = gc.partition(model, "all-layer")
    engine = gc.attach(model, None, groups, None, clip="abadi")
    for whole in (True, False, True, False):
        model.whole = whole
        engine.backward(output_square(model, batch))
        plain = Alternates().double()
        plain.load_state_dict(model.state_dict())
        plain.whole = whole
        want = oracle.clipped_sum(plain, output_square, batch, members(groups), "abadi")
        assert torch.allclose(engine.unsafe_norms()["all"], want.norms["all"], rtol=1e-10)
        assert all(torch.allclose(g, want.sums[n], atol=1e-10) for n, g in gradients(model).items())
        engine.discard()


def test_o05_every_micro_batch_counts() -> None:
    """Opacus's ghost mode clears gradients in backward: the first micro-batch is dropped, and no guard fires."""
    assert same_in_micro_batches(MLP.model(), (MLP.batch(6)[0],), (2, 1, 3), "layer-wise")
    model = MLP.model()
    optimizer, engine = private(model)
    engine.backward(MLP.losses(model, MLP.batch(4)))
    optimizer.step()
    with pytest.raises(GroupClipError, match=r"call optimizer\.zero_grad\(\)"):
        engine.backward(MLP.losses(model, MLP.batch(4)))


def test_o06_the_users_own_loss() -> None:
    """Opacus's ghost mode noises and accounts the unclipped gradient of a loss that isn't its own."""
    model = MLP.model()
    optimizer, engine = private(model)
    with pytest.raises(PrivacyViolation, match="reduced loss"):
        MLP.losses(model, MLP.batch(8)).mean().backward()
    assert all(p.grad is None for p in model.parameters())
    assert is_noise(noise_of_a_step(model, optimizer, engine))  # nothing of it is in the next step
    assert engine.ledger is not None and engine.ledger.steps == 1


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_o07_padding_modes(dims: int, mode: Any) -> None:
    """Opacus unfolds zeros whatever the mode: wrong gradients, and 2.76 times the bound in ghost mode."""
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    assert exact(kind(2, 2, 3, padding=1, padding_mode=mode), numbers(4, 2, *(3,) * dims))


def test_o08_padding_idx() -> None:
    """Opacus gives the padding row a gradient."""
    assert exact(nn.Embedding(7, 3, padding_idx=2), IDS)


def bags(ids: Tensor, **options: Any) -> nn.Module:
    weighs = options.pop("weighs", False)
    bag = nn.EmbeddingBag(7, 3, **options)

    def use(m: nn.Module, ids: Tensor) -> Tensor:
        return m.bag(ids, per_sample_weights=(ids.double() + 1) / 7 if weighs else None)

    return Applies(use, bag=bag)


@pytest.mark.parametrize(
    "options",
    [{"mode": "sum"}, {"mode": "mean"}, {"mode": "max"}, {"mode": "sum", "padding_idx": 2},
     {"mode": "mean", "padding_idx": 2}, {"mode": "sum", "weighs": True}],
)  # fmt: skip
def test_o08_embedding_bags(options: dict[str, Any]) -> None:
    """Opacus is wrong for repeated ids, padding and mode="max"; per_sample_weights and 2-D input crash."""
    ids = torch.tensor([[0, 0, 1, 2], [3, 3, 3, 3], [2, 2, 5, 6], [1, 2, 3, 4]])
    assert exact(bags(ids, **options), ids)


def test_o08_scale_grad_by_freq() -> None:
    """Opacus ignores it. It divides by how often an id is in the batch, so samples aren't apart: refused."""
    model = nn.Embedding(7, 3, scale_grad_by_freq=True)
    gc.attach(model, None, "all-layer", None)
    with pytest.raises(UnsupportedOperation, match="scale_grad_by_freq"):
        model(IDS)


def flattens(m: nn.Module, ids: Tensor) -> Tensor:
    tokens = m.norm(torch.tanh(m.body(m.table(ids.reshape(-1)))))  # [B * T, d]
    return m.head(tokens).reshape(*ids.shape, -1)


def test_o09_tokens_flattened_into_the_batch() -> None:
    """Opacus clips every token as a sample, without a warning."""
    model = Applies(
        flattens, table=nn.Embedding(7, 4), body=nn.Linear(4, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 2)
    )
    assert exact(model, IDS)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_o09_a_declared_reduction(reduction: Any) -> None:
    """Opacus told "mean" for a sum scales every gradient by B. A loss a sample needs no such word; declared, it is exact."""
    batch, groups = MLP.batch(5, torch.float64), gc.partition(MLP.model(), "layer-wise")
    want = clipped_by_engine(MLP.model(torch.float64), MLP.losses, batch, groups, "abadi")
    model = MLP.model(torch.float64)
    gc.attach(model, None, groups, None, clip="abadi", loss_reduction=reduction)
    losses = MLP.losses(model, batch)
    (losses.mean() if reduction == "mean" else losses.sum()).backward()
    assert all(torch.allclose(g, want.sums[n], atol=1e-12) for n, g in gradients(model).items())


def test_o10_as_many_batches_as_planned_and_one_rate_for_all() -> None:
    """Opacus makes int(1 / (1 / k)) batches: for 141 of k < 2000 one too few, and accounts another rate than it samples."""
    broken = [k for k in range(1, 2000) if int(1 / (1 / k)) != k]
    assert len(broken) > 100  # so the cases below are real
    for k in broken:
        mechanism = gc.Mechanism(dataset_size=10 * k, expected_batch_size=10, steps=k)
        assert len(gc.poisson_batches(range(10 * k), mechanism)) == k
        assert abs(Fraction(mechanism.sample_rate) - Fraction(1, k)) < Fraction(1, 10**15)
    mechanism = gc.Mechanism(dataset_size=930, expected_batch_size=10, steps=93).calibrate(epsilon=3.0, delta=1e-5)
    assert sum(1 for _ in gc.poisson_batches(range(930), mechanism)) == 93
    assert mechanism.epsilon(delta=1e-5, steps=93) <= 3.0


@pytest.mark.parametrize("loader_options", [{"batch_size": 4}, {"batch_size": 1}, {"batch_size": 4, "drop_last": True}])
def test_o11_rate_and_batch_size_are_given_not_guessed(loader_options: dict[str, Any]) -> None:
    """Opacus reads them off len(loader): n = 10, B = 4 gives E[B] = 3; a weighted sampler is dropped in silence."""
    mechanism = plan(size=10, batch=4)
    assert (mechanism.sample_rate, mechanism.expected_batch_size) == (0.4, 4)
    dataset = TensorDataset(numbers(10, 3))
    loaders = [
        DataLoader(dataset, **loader_options),
        DataLoader(dataset, sampler=WeightedRandomSampler([1.0] * 10, 10), **loader_options),
    ]
    for loader in loaders:  # a loader has batches of its own: it's no data set
        with pytest.raises((TypeError, ValueError), match=r"DataLoader|the data set holds"):
            for logical in gc.poisson_batches(loader, mechanism):  # pyright: ignore[reportArgumentType]
                list(logical)


def test_o12_an_abandoned_logical_batch() -> None:
    """Opacus after a `break` inside a logical batch mixes what was summed into the next step.

    Here nothing is mixed; and as which batch is abandoned may depend on what is in it, the next step isn't vouched for.
    """
    x, labels = MLP.batch(40)
    model = MLP.model()
    optimizer, engine = private(model, steps=6)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    batches = gc.poisson_batches(TensorDataset(x, labels), engine.mechanism or plan(), microbatch=1)
    for taken, logical in enumerate(batches):
        for part in logical:
            engine.backward(MLP.losses(model, tuple(part)))
            if taken == 2:
                break
        if taken == 2:
            engine.discard()
            assert all(p.grad is None for p in model.parameters())
            continue
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert engine.ledger is not None
    assert engine.ledger.steps_by_sampler == {"groupclip": 4, "user": 1}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**5)  # once a logical step


def test_o12_what_is_mixed_into_a_step_is_not_called_a_poisson_batch() -> None:
    """See above: left in place, it is the user's own sampling, and the statement says so."""
    x, labels = MLP.batch(40)
    model = MLP.model()
    optimizer, engine = private(model, steps=2)
    for taken, logical in enumerate(
        gc.poisson_batches(TensorDataset(x, labels), engine.mechanism or plan(), microbatch=1)
    ):
        parts = list(logical)
        for part in parts:
            engine.backward(MLP.losses(model, tuple(part)))
        if taken == 0:
            continue  # neither a step nor a discard
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.sampling == "user"


@pytest.mark.parametrize("thresholds", [0.0, -1.0, math.inf, math.nan])
def test_o13_thresholds_that_bound_nothing(thresholds: float) -> None:
    """Opacus accepts a bound of 0 or below; infinity gives an error about NaN noise even without any."""
    with pytest.raises(ValueError, match="threshold"):
        gc.attach(MLP.model(), None, "all-layer", None, thresholds=thresholds)


@pytest.mark.parametrize("sigma", [-1.0, math.inf, math.nan])
def test_o13_noise_that_is_none(sigma: float) -> None:
    """Opacus accepts a negative noise multiplier."""
    with pytest.raises(ValueError, match="noise_multiplier"):
        plan(sigma)


def test_o13_one_nan_sample() -> None:
    """Opacus: all parameters become NaN."""
    model = MLP.model()
    x, labels = MLP.batch(8)
    x = x.clone()
    x[3] = math.nan
    optimizer, engine = private(model)
    engine.backward(MLP.losses(model, (x, labels)))
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_o14_empty_and_uneven_micro_batches() -> None:
    """Opacus's adaptive clipping crashes on an empty batch and sees the last physical batch alone (4 samples of 16)."""
    assert same_in_micro_batches(MLP.model(), (MLP.batch(6)[0],), (0, 2, 0, 4, 0))
    model = MLP.model()
    optimizer, engine = private(model)
    whole = MLP.batch(8)
    seen = []
    for part in (slice(0, 0), slice(0, 3), slice(3, 8)):
        engine.backward(MLP.losses(model, tuple(t[part] for t in whole)))
        seen.append(engine.unsafe_norms()["0"])
    engine.discard()
    engine.backward(MLP.losses(model, whole))
    assert torch.allclose(torch.cat(seen), engine.unsafe_norms()["0"])
    optimizer.zero_grad()


def test_o15_empty_batches_are_steps() -> None:
    """Opacus's distributed sampler skips them: ranks lose step with each other."""
    mechanism = gc.Mechanism(dataset_size=4, expected_batch_size=0.5, steps=60, noise_multiplier=1.0)
    dataset = TensorDataset(numbers(4, 5), torch.zeros(4, dtype=torch.long))
    model = MLP.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = gc.attach(model, optimizer, "all-layer", mechanism)
    empty = 0
    for logical in gc.poisson_batches(dataset, mechanism):
        parts = list(logical)
        empty += not parts
        for part in parts:
            engine.backward(MLP.losses(model, tuple(part)))
        if parts:
            optimizer.step()
            optimizer.zero_grad()
        else:
            assert is_noise(noise_of_a_step(model, optimizer, engine))
    assert engine.ledger is not None and engine.ledger.steps == 60
    assert 10 < empty < 55  # expected 35, standard deviation 3.8: outside with a chance below 1e-6


# ---------------------------------------------------------------- loud in Opacus: it works here, or says why not


def test_l01_embedding_and_an_empty_batch() -> None:
    """Opacus's ghost mode fails on an empty Poisson batch with an embedding."""
    model = nn.Sequential(nn.Embedding(40, 4), nn.Flatten(1), nn.Linear(16, 2))
    optimizer, engine = private(model)
    engine.backward(output_square(model, (IDS[:0],)))
    assert all(not g.any() for g in gradients(model).values())
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_l02_norms_without_bias() -> None:
    """Opacus fails on LayerNorm(bias=False)."""
    assert exact(
        nn.Sequential(nn.LayerNorm(4, bias=False), nn.Linear(4, 4), nn.Tanh(), nn.RMSNorm(4)), numbers(5, 3, 4)
    )


def test_l03_in_place_operations() -> None:
    """Opacus fails where the output of a layer is changed in place: ResNets."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        identity = m.stem(x)
        out = m.norm(m.conv(F.relu_(identity * 1.0)))
        out += identity
        out.tanh_()
        return m.head(F.silu(m.head_norm(out.flatten(1)), inplace=True)).mul_(2.0)

    model = Applies(
        use, stem=nn.Conv2d(2, 4, 1), conv=nn.Conv2d(4, 4, 3, padding=1), norm=nn.GroupNorm(2, 4),
        head_norm=nn.LayerNorm(16), head=nn.Linear(16, 2),
    )  # fmt: skip
    assert exact(model, numbers(5, 2, 2, 2))
    layers = [nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.LeakyReLU(0.5, inplace=True)]
    assert exact(nn.Sequential(*layers), numbers(5, 4))


def test_l04_keywords() -> None:
    """Opacus fails on a layer that is called by keyword."""

    def use(m: nn.Module, x: Tensor, ids: Tensor) -> Tensor:
        return m.linear(input=x) + m.table(input=ids)

    model = Applies(use, linear=nn.Linear(4, 3), table=nn.Embedding(7, 3))
    assert exact(model, numbers(5, 4), IDS[:, 0])

    class Keywords(nn.Linear):
        def forward(self, *, values: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(values)

    assert exact(Keywords(4, 3), numbers(5, 4), losses=lambda m, b: (m(values=b[0]) - 0.5).square().mean(1))


class Mixes(nn.Module):
    """Two inputs, two outputs, a parameter and a buffer of its own."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(4))
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0, 3.0]))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mix = torch.sigmoid(self.gate) * self.scale
        return x * mix + y, y * self.gate


def test_l05_l06_l08_two_inputs_a_tuple_and_a_buffer() -> None:
    """Opacus fails on a custom layer with two inputs, on one that returns a tuple, on a trainable one with a buffer."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        first, second = m.mixes(m.linear(x), x)
        return m.linear(first) * second

    assert exact(Applies(use, linear=nn.Linear(4, 4), mixes=Mixes()), numbers(5, 4))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_l07_recurrent_layers(kind: type[nn.RNNBase]) -> None:
    """Opacus refuses torch's own and replaces them."""
    model = Applies(lambda m, x: m.rnn(x)[0], rnn=kind(3, 2, num_layers=2, bidirectional=True, batch_first=True))
    assert exact(model, numbers(4, 3, 3))


def test_l07_attention() -> None:
    """Opacus refuses torch's own and replaces it."""
    model = Applies(lambda m, x: m.attention(x, x, x)[0], attention=nn.MultiheadAttention(4, 2, batch_first=True))
    assert exact(model, numbers(4, 3, 4))


def test_l09_spectral_norm() -> None:
    """Opacus fails on parametrised weights. (Power iterations run in training mode; the oracle would run more of them.)"""
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))
    assert exact(model.eval(), numbers(5, 4))
    model = model.float().train()
    vector = model[0].parametrizations.weight[0]._u  # pyright: ignore
    before = vector.clone()
    optimizer, engine = private(model, style="all-layer")
    engine.backward(output_square(model, (numbers(5, 4),)))
    assert not torch.equal(vector, before)
    optimizer.step()


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_l10_checkpoints_without_re_entry(style: str) -> None:
    """Opacus fails on activation checkpoints with use_reentrant=False."""
    block = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
    model = Applies(lambda m, x: m.head(checkpoint(m.block, x, use_reentrant=False)), block=block, head=nn.Linear(4, 2))
    assert same_in_micro_batches(model, (numbers(5, 4),), (2, 3), style)


def test_l11_an_unused_layer() -> None:
    """Opacus fails: its gradient sample isn't there. It gets noise here."""
    model = Applies(lambda m, x: m.used(x), used=nn.Linear(5, 20), unused=nn.Linear(20, 5))
    optimizer, engine = private(model)
    engine.backward(output_square(model, (numbers(8, 5),)))
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_l12_a_forward_pass_without_a_backward() -> None:
    """Opacus fails at the step after a training-mode forward pass whose loss was thrown away."""
    model, batch = MLP.model(), MLP.batch(6)
    groups = gc.partition(model, "layer-wise")
    want = clipped_by_engine(model, MLP.losses, batch, groups).sums
    optimizer, engine = private(model)
    MLP.losses(model, MLP.batch(3, seed=9))
    engine.backward(MLP.losses(model, batch))
    MLP.losses(model, MLP.batch(7, seed=8))
    assert all(torch.allclose(g, want[n], atol=1e-6) for n, g in gradients(model).items())
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_l13_attaching_twice() -> None:
    """Opacus fails deep inside. Refused here, for the model and for a part of it, and the first engine goes on."""
    model = TwoTowers()
    _, engine = private(model)
    for again in (model, model.right):
        with pytest.raises(GroupClipError, match="attached already"):
            gc.attach(again, None, "all-layer", None)
    engine.backward(output_square(model, (numbers(5, 4),)))


def test_l14_lbfgs() -> None:
    """Opacus fails in the step."""
    model = MLP.model()
    with pytest.raises(PrivacyViolation, match="LBFGS evaluates the gradient several times"):
        gc.attach(model, torch.optim.LBFGS(model.parameters()), "all-layer", plan())


def test_l15_training_in_eval_mode() -> None:
    """Opacus refuses models in eval mode, in which Hugging Face gives them out."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2))
    assert exact(model.eval(), numbers(5, 4))


@pytest.mark.parametrize(
    ("facts", "delta", "outcome"),
    [
        ({"steps": 0}, 1e-5, "steps"),
        ({"noise_multiplier": 0.0}, 1e-5, "adds no noise"),
        ({"steps": 10_000_000, "noise_multiplier": 20.0}, 1e-5, None),
        ({"expected_batch_size": 20_000, "noise_multiplier": 0.05, "steps": 10}, 1e-5, None),
        ({}, 0.9, None),
    ],
)
def test_l16_questions_to_the_accountant(facts: dict[str, Any], delta: float, outcome: str | None) -> None:
    """Opacus: an overflow, 16.9 GiB, a hang, an endless loop, a negative epsilon. Here a bound >= 0, or an error that says why."""
    usual = {"dataset_size": 40_000, "expected_batch_size": 400, "steps": 100, "noise_multiplier": 1.0}

    def ask() -> float:
        return gc.Mechanism(**(usual | facts)).epsilon(delta=delta)

    if outcome is None:
        assert 0 <= ask() < math.inf
    else:
        with pytest.raises((ValueError, PrivacyViolation), match=outcome):
            ask()


def test_l16_before_the_first_step() -> None:
    """Opacus's PRV accountant raises."""
    _, engine = private(MLP.model())
    assert engine.epsilon(delta=1e-5) == 0.0
