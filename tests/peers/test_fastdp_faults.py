"""What went wrong in FastDP (its 2.0.0), as tests of the right behaviour. ``docs/peers.md`` lists them: F1 to F25.

Each test says what the peer does. ``exact`` compares with single samples in float64, in three clipping styles.
"""

from __future__ import annotations

import gc as garbage
import math
import sys
import weakref
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
    length,
    noise_of_a_step,
    numbers,
    plan,
    private,
    repeated,
    same_in_micro_batches,
    tied_autoencoder,
)
from torch import Tensor, nn

import groupclip as gc
from check_attached import facts
from check_engine import ENTRIES, clipped_by_engine, gradients
from groupclip.errors import BudgetExceeded, PrivacyViolation
from models import next_token, output_square

IDS = torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(0))


def test_f01_tied_weights() -> None:
    """FastDP adds both gradients with the factor of one: a sample adds up to 287 R, and tied GPT-2 is wrong."""
    assert exact(tied_autoencoder(), IDS)
    assert at_most_r(tied_autoencoder(), IDS)


def test_f01_twin_the_factor_of_one_use_lets_a_sample_exceed_r() -> None:
    """What the peer does: both gradients summed, weighed by the norm of the smaller."""
    ones, weight = torch.ones(1, 4), torch.full((4, 4), 0.1)
    uses = [weight.clone().requires_grad_(True) for _ in range(2)]
    (0.01 * ones @ uses[0] @ uses[1]).square().sum().backward()
    small, large = sorted((u.grad for u in uses if u.grad is not None), key=torch.linalg.vector_norm)
    assert (small + large).norm() / small.norm() > 1.9  # of R


def test_f02_a_module_called_twelve_times() -> None:
    """FastDP keeps the last activation: wrong sums, and up to 6.9 R of a sample for ALBERT's twelve repeats."""
    assert exact(repeated(12), numbers(5, 4))
    assert at_most_r(repeated(12), numbers(5, 4))


def test_f03_layers_inside_containers() -> None:
    """FastDP's extending engine misses layers in Sequential and ModuleList: trained without clipping and noise."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        return m.named["head"](m.listed[0](m.stacked(x).flatten(1)))

    model = Applies(
        use,
        stacked=nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Sequential(nn.Conv2d(4, 3, 1))),
        listed=nn.ModuleList([nn.Linear(12, 9)]),
        named=nn.ModuleDict({"head": nn.Linear(9, 2)}),
    )
    assert exact(model, numbers(5, 2, 2, 2))
    optimizer, engine = private(model.float(), sigma=1000.0)
    engine.backward(output_square(model, (numbers(5, 2, 2, 2),)))
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_f04_noise_in_every_step() -> None:
    """FastDP under FSDP adds noise in the first step alone."""
    model = ENTRIES["mlp"].model()
    optimizer, engine = private(model)
    steps = []
    for seed in range(4):
        engine.backward(ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(8, seed=seed)))
        steps.append(noise_of_a_step(model, optimizer, engine))
        assert is_noise(steps[-1])
    assert all(not torch.equal(a["0.weight"], b["0.weight"]) for a in steps for b in steps if a is not b)


def test_f05_biases_alone() -> None:
    """FastDP's extending engine trains biases of frozen weights on the raw gradient."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.Flatten(1), nn.Linear(12, 60), nn.LayerNorm(60), nn.Linear(60, 40)
    )
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    assert exact(model, numbers(5, 2, 3, 3))
    optimizer, engine = private(model.float(), sigma=1000.0)
    engine.backward(output_square(model, (numbers(5, 2, 3, 3),)))
    noise = noise_of_a_step(model, optimizer, engine)
    assert set(noise) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert is_noise(noise)


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_f06_the_head_registered_first(style: str) -> None:
    """FastDP ends a group at the first layer registered: what comes later is frozen, or clipped with old gradients."""
    assert exact(TwoTowers(), numbers(5, 4))
    assert same_in_micro_batches(TwoTowers(), (numbers(6, 4),), (2, 3, 1), style)


def test_f07_zero_grad_clears_what_was_accumulated() -> None:
    """FastDP keeps private gradients outside ``.grad``: after zero_grad a step still holds both batches."""
    model = ENTRIES["mlp"].model()
    optimizer, engine = private(model, sigma=0.0)
    first, second = (ENTRIES["mlp"].batch(4, seed=s) for s in (1, 2))
    engine.backward(ENTRIES["mlp"].losses(model, second))
    alone = gradients(model)
    optimizer.zero_grad()
    engine.backward(ENTRIES["mlp"].losses(model, first))
    optimizer.zero_grad()
    engine.backward(ENTRIES["mlp"].losses(model, second))
    optimizer.step()
    assert all(torch.allclose(g * 8, alone[n]) for n, g in gradients(model).items())


@pytest.mark.parametrize(("dtype", "first"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_f08_ids_that_half_precision_would_round(dtype: torch.dtype, first: int) -> None:
    """FastDP casts ids to the model's type: 256 and 257 are one in bfloat16, and the norm is wrong."""
    model = nn.Embedding(first + 4, 2).to(dtype)
    ids = torch.tensor([[first, first + 1], [first + 1, first + 1]])
    engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=100.0)
    engine.backward(model(ids).flatten(1).sum(1))
    norms = engine.unsafe_norms()["all"]
    assert torch.allclose(norms, torch.tensor([2.0, math.sqrt(8)]), rtol=1e-3)  # two rows of ones; one row of twos
    assert model.weight.grad is not None
    rows = model.weight.grad[first : first + 2].float()
    assert torch.allclose(rows, torch.tensor([[1.0, 1.0], [3.0, 3.0]]), rtol=2e-2)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_f09_a_frozen_half_is_not_in_the_norm(frozen: str) -> None:
    """FastDP's layer-wise norm includes the frozen weight or bias of the layer: it clips too much."""
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2))
    for i in (0, 1):
        getattr(model[i], frozen).requires_grad_(False)
    assert exact(model, numbers(5, 4))


class Windows(nn.Module):
    """Attention inside windows of two tokens: ``[B * windows, 2, d]``, with a bias by position and one batch-wide."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 3)
        self.relative = nn.Parameter(torch.randn(2, 2))
        self.positions = nn.Embedding(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        x = x + self.positions(torch.arange(t).expand(b, t))  # ids broadcast over the batch
        q, k, v = self.qkv(x.reshape(b * t // 2, 2, d)).chunk(3, dim=-1)
        mixed = (q @ k.transpose(1, 2) / 2 + self.relative).softmax(-1) @ v
        return self.out(mixed.reshape(b, t, d))


@pytest.mark.parametrize("size", [2, 3, 6])  # 2 and 6 are lengths of other dimensions as well
def test_f10_sequence_first_and_windows(size: int) -> None:
    """FastDP takes dimension 0 for the batch: time steps or windows are clipped, up to 3.9 R of a sample."""
    sequence_first = Applies(
        lambda m, x: m.head(torch.tanh(m.body(x.transpose(0, 1)))).transpose(0, 1),
        body=nn.Linear(4, 4), head=nn.Linear(4, 2),
    )  # fmt: skip
    assert exact(sequence_first, numbers(size, 6, 4))
    assert exact(Windows(), numbers(size, 6, 4))


@pytest.mark.parametrize(
    ("style", "error"),
    [
        ("layerwise", ValueError),
        ("", ValueError),
        ("0", ValueError),
        (("0", "2"), TypeError),
        (["0.weight"], TypeError),
        ({"2.*": "last", "4.*": "last"}, ValueError),  # the first layer is missing
        ({"*": "all", "attention.*": "none"}, ValueError),  # matches nothing
    ],
)
def test_f11_an_unknown_style(style: Any, error: type[Exception]) -> None:
    """FastDP takes any text or tuple: nothing trains, or the rest is frozen, and a name that never fires counts in M."""
    model = ENTRIES["mlp"].model()
    before = facts(model)
    with pytest.raises(error):
        gc.attach(model, None, style, None)
    assert facts(model) == before


def test_f12_the_mean_over_a_batchs_tokens() -> None:
    """FastDP accepts it: a sample's gradient depends on how long the others are. Here there's one loss a sample."""
    entry = ENTRIES["gpt"]
    model = entry.model()
    (ids,) = entry.batch(4)
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(ValueError, match=r"one loss per sample, shape \[B\]: pass reduction='none'"):
        logits = model(ids[:, :-1])
        engine.backward(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    engine.detach()
    groups = gc.partition(model, "all-layer")
    three = clipped_by_engine(model, next_token, (ids[:3],), groups, "abadi")
    four = clipped_by_engine(model, next_token, (ids,), groups, "abadi")
    fourth = clipped_by_engine(model, next_token, (ids[3:],), groups, "abadi")
    for name in three.sums:  # one more sample changes nobody else's part
        assert torch.allclose(four.sums[name], three.sums[name] + fourth.sums[name], atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1024.0, 65536.0])
def test_f13_a_loss_scaler_is_refused(scale: float) -> None:
    """FastDP with a loss scale: every sample sits at R, and its unscaled ``.grad`` is replaced."""
    model, entry = ENTRIES["mlp"].model(), ENTRIES["mlp"]
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer, engine = private(model)
    before = [p.detach().clone() for p in model.parameters()]
    engine.backward(scaler.scale(entry.losses(model, entry.batch(1))))
    assert 0 < length(gradients(model)) <= 1 + 1e-5  # whatever the scale, one sample is within R
    with pytest.raises(PrivacyViolation, match=r"GradScaler.*loss_scale"):
        scaler.step(optimizer)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_f13_a_declared_loss_scale_is_undone() -> None:
    """See above: norms and sums are those of the loss itself."""
    entry = ENTRIES["mlp"]
    found = []
    for scale in (1.0, 1024.0):
        model = entry.model()
        engine = gc.attach(model, None, "layer-wise", None, clip="abadi")
        engine.backward(entry.losses(model, entry.batch(4)), loss_scale=scale)
        found.append({**gradients(model), **engine.unsafe_norms()})
    assert all(torch.allclose(value, found[1][name], rtol=1e-5, atol=1e-7) for name, value in found[0].items())


def test_f14_an_embedding_layer_by_layer() -> None:
    """FastDP's distributed engine casts ids to floats and crashes; importing it needs DeepSpeed and fairscale."""
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2))
    assert exact(model, IDS)
    assert not {"deepspeed", "fairscale"} & set(sys.modules)


def test_f15_grouped_convolutions_and_paddings() -> None:
    """FastDP takes a grouped convolution for a full one, and every padding for zeros; "same" crashes."""
    for groups in (2, 4):
        assert exact(nn.Sequential(nn.Conv2d(4, 8, 3, groups=groups), nn.Tanh()), numbers(5, 4, 4, 5))
    for mode in ("zeros", "reflect", "replicate", "circular"):
        assert exact(nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode), numbers(5, 2, 4, 5))
    assert exact(nn.Conv2d(2, 4, 3, padding="same", groups=2), numbers(5, 2, 4, 5))


@pytest.mark.parametrize("flag", ["torch_seed_is_fixed", "num_GPUs"])
def test_f16_no_flag_and_no_seed_decides_the_noise(flag: str) -> None:
    """FastDP divides the noise by a flag that the user must get right, and draws it from the global seed."""
    with pytest.raises(TypeError, match=flag):
        gc.attach(nn.Linear(3, 2), None, "all-layer", None, **{flag: 8})  # pyright: ignore[reportArgumentType]
    drawn = []
    for _ in range(2):
        model = ENTRIES["mlp"].model()
        torch.manual_seed(3)
        optimizer, engine = private(model)
        drawn.append(noise_of_a_step(model, optimizer, engine)["0.weight"])
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_f17_a_sample_that_is_not_finite(bad: float) -> None:
    """FastDP sets NaN coordinates of the noisy gradient to exact zeros, or makes the whole update NaN."""
    model = ENTRIES["mlp"].model()
    x, labels = ENTRIES["mlp"].batch(6)
    groups = gc.partition(model, "all-layer")
    without = clipped_by_engine(model, ENTRIES["mlp"].losses, (x[1:], labels[1:]), groups).sums
    x = x.clone()
    x[0, 0] = bad
    optimizer, engine = private(model, style="all-layer")
    engine.backward(ENTRIES["mlp"].losses(model, (x, labels)))
    assert all(torch.allclose(g, without[n], atol=1e-6) for n, g in gradients(model).items())
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_f17_a_gradient_spoilt_on_its_way_to_the_step() -> None:
    """See above: a NaN in the sum stops the step; nothing takes it for a zero."""
    model = ENTRIES["mlp"].model()
    optimizer, engine = private(model)
    engine.backward(ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(6)))
    next(model.parameters()).grad[0, 0] = math.nan  # pyright: ignore[reportOptionalSubscript]
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(PrivacyViolation, match="isn't what the last backward pass left there"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_f18_whose_batches_they_were_is_said() -> None:
    """FastDP accounts for Poisson samples and trains on shuffled batches; it has no sampler and no empty batch."""
    model = ENTRIES["mlp"].model()
    x, labels = ENTRIES["mlp"].batch(40)
    optimizer, engine = private(model, steps=3)
    dataset = torch.utils.data.TensorDataset(x, labels)
    for logical in gc.poisson_batches(dataset, engine.mechanism or plan()):
        for part in logical:
            engine.backward(ENTRIES["mlp"].losses(model, tuple(part)))
        optimizer.step()
        optimizer.zero_grad()
        assert engine.ledger is not None and engine.ledger.sampling == "groupclip"
    other = ENTRIES["mlp"].model()
    optimizer, engine = private(other, steps=4)
    engine.backward(ENTRIES["mlp"].losses(other, (x[:8], labels[:8])))  # the first of a shuffled list
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.sampling == "user"
    assert "No epsilon is claimed" in engine.statement(delta=1e-5)
    assert "provided that the batches w" in engine.statement(delta=1e-5, sampling_vouched_by_user=True)


def test_f19_every_step_is_counted_and_none_made_past_the_plan() -> None:
    """FastDP steps on partial batches that it doesn't count, and its distributed engines report epsilon 0 for ever."""
    model = ENTRIES["mlp"].model()
    optimizer, engine = private(model, steps=3)
    for taken, size in enumerate((8, 1, 0), start=1):  # whole, partial, empty
        engine.backward(ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(size)))
        optimizer.step()
        optimizer.zero_grad()
        spent = engine.epsilon(delta=1e-5, sampling_vouched_by_user=True)
        assert spent == plan(steps=3).epsilon(delta=1e-5, steps=taken) > 0
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(BudgetExceeded):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_f20_no_half_private_state() -> None:
    """FastDP built and not attached trains on raw gradients; a patch that fails is swallowed."""
    model = ENTRIES["mlp"].model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = facts(model)
    with pytest.raises(ValueError, match="thresholds"):
        gc.attach(model, optimizer, "layer-wise", plan(), thresholds=[1.0])
    assert facts(model) == before and not optimizer._optimizer_step_pre_hooks
    gc.attach(model, optimizer, "layer-wise", plan())
    with pytest.raises(PrivacyViolation, match="reduced loss"):
        ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(8)).mean().backward()
    assert all(p.grad is None for p in model.parameters())


class Branches(nn.Module):
    """One of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 20), nn.Linear(5, 20)
        self.goes_left = True

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if self.goes_left else self.right(x)


def test_f21_a_branch_unused_in_one_step_trains_in_the_next() -> None:
    """FastDP removes a parameter without a private gradient in one step for ever."""
    model = Branches()
    optimizer, engine = private(model)
    for goes_left in (True, False, True):
        model.goes_left = goes_left
        engine.backward(output_square(model, (numbers(8, 5),)))
        used, unused = (model.left, model.right) if goes_left else (model.right, model.left)
        assert used.weight.grad is not None and used.weight.grad.norm() > 0 and unused.weight.grad is None
        assert is_noise(noise_of_a_step(model, optimizer, engine))  # the unused branch gets noise all the same
    model.goes_left = True  # and a step without any backward
    assert is_noise(noise_of_a_step(model, optimizer, engine))


def test_f22_batch_norm() -> None:
    """FastDP accepts it: its weights freeze, its statistics are those of the raw data, samples mix."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(PrivacyViolation, match=r"module '1' is BatchNorm1d in training mode"):
        gc.attach(model, None, "all-layer", None)


def test_f23_detach_leaves_nothing_and_freezes_nothing() -> None:
    """FastDP's detach leaves parameters frozen and full of attributes; a late origin layer freezes all, silently."""
    model = ENTRIES["frozen-halves"].model()
    parameters = [(n, p.requires_grad, set(p.__dict__), type(p)) for n, p in model.named_parameters()]
    modules = [(n, set(m.__dict__)) for n, m in model.named_modules()]
    optimizer, engine = private(model)
    engine.backward(ENTRIES["frozen-halves"].losses(model, ENTRIES["frozen-halves"].batch(8)))
    optimizer.step()
    engine.detach()
    assert parameters == [(n, p.requires_grad, set(p.__dict__), type(p)) for n, p in model.named_parameters()]
    assert modules == [(n, set(m.__dict__)) for n, m in model.named_modules()]
    with pytest.raises(ValueError, match="no trainable parameters"):
        gc.attach(model.requires_grad_(False), None, "all-layer", None)


def test_f24_the_gradients_are_ordinary_ones() -> None:
    """FastDP under DistributedDataParallel never reduces: replicas part ways.

    What data parallelism needs is promised here: the clipped sum arrives in ``p.grad`` by autograd itself, once, before
    the hooks that reduce; and the sums of shares of a batch add up to the sum of the batch.
    """
    model, batch = ENTRIES["mlp"].model(), ENTRIES["mlp"].batch(8)
    engine = gc.attach(model, None, "layer-wise", None)
    arrived: dict[str, list[Tensor]] = {}
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(
            lambda p, name=name: arrived.setdefault(name, []).append(p.grad.clone())  # pyright: ignore
        )
    ranks = []
    for share in (slice(0, 3), slice(3, 8)):
        arrived.clear()
        engine.backward(ENTRIES["mlp"].losses(model, tuple(t[share] for t in batch)))
        assert all(len(a) == 1 and torch.equal(a[0], gradients(model)[n]) for n, a in arrived.items())
        assert set(arrived) == {n for n, _ in model.named_parameters()}
        ranks.append(gradients(model))
        engine.discard()
    engine.backward(ENTRIES["mlp"].losses(model, batch))
    assert all(torch.allclose(g, ranks[0][n] + ranks[1][n], atol=1e-6) for n, g in gradients(model).items())


def test_f25_repr_output_and_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    """FastDP's repr raises without a target, it prints while it trains, and evaluation keeps activations."""
    model = ENTRIES["mlp"].model()
    optimizer, engine = private(model)
    kept: list[weakref.ref[Tensor]] = []
    handle = model[1].register_forward_hook(lambda m, i, out: kept.append(weakref.ref(out)))  # type: ignore[index]
    model.eval()
    with torch.no_grad():
        model(ENTRIES["mlp"].batch(8)[0])
    garbage.collect()
    assert kept and all(ref() is None for ref in kept)
    handle.remove()
    model.train()
    engine.backward(ENTRIES["mlp"].losses(model, ENTRIES["mlp"].batch(8)))
    optimizer.step()
    assert repr(engine)
    assert capsys.readouterr() == ("", "")
