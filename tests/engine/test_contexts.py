"""Around a pass: saved-tensor hooks, offload, threads, replicas, torch.func, inference mode. Right, or refused by name."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import groupclip as gc
from check_attached import ENTRY, attached, plan
from check_engine import CORE, ENTRIES, Clipped, case, faults, gradients, grouped
from groupclip.autograd.saved import _told
from groupclip.errors import GroupClipError, PrivacyViolation, UnsupportedOperation
from oracle import clipped_sum

# ------------------------------------------------------------------ saved tensors


@contextmanager
def packed(counts: dict[str, int]) -> Iterator[None]:
    """As an offload to disk: nothing of the tensor is left but its bytes."""

    def pack(t: Tensor) -> tuple[Any, ...]:
        counts["packed"] += 1
        return t.detach().clone().contiguous().view(-1).tolist(), t.dtype, t.shape

    def unpack(box: tuple[Any, ...]) -> Tensor:
        counts["unpacked"] += 1
        return torch.tensor(box[0], dtype=box[1]).view(box[2])

    with saved_tensors_hooks(pack, unpack):
        yield


@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
@pytest.mark.parametrize("name", CORE)
def test_saved_tensors_may_live_elsewhere(name: str, style: str) -> None:
    """What rules keep goes through autograd's hooks, as everything that is saved."""
    want, entry = case(name, style, "abadi"), ENTRIES[name]
    batch = entry.batch(6, torch.float64)
    counts = {"packed": 0, "unpacked": 0}
    contexts: list[Callable[[], AbstractContextManager[None]]] = [
        save_on_cpu,
        lambda: packed(counts),
    ]
    for context in contexts:
        model = entry.model(torch.float64)
        engine = gc.attach(model, None, want.groups, None, clip="abadi", thresholds=want.thresholds)
        with context():
            losses = entry.losses(model, batch)
        engine.backward(losses)
        got = Clipped(gradients(model), engine.unsafe_norms())
        assert faults(got, want.reference, want.groups, want.thresholds, 1e-10) == []
    assert counts["packed"] > 5 and counts["unpacked"] > 5


@pytest.mark.parametrize("name", ["vit", "gpt-tied"])
def test_offload_around_checkpoints(name: str) -> None:
    want, entry = case(name, "all-layer", "abadi"), ENTRIES[name]
    model = entry.model(torch.float64)
    blocks: Any = model.blocks if name == "vit" else model.h
    for block in blocks:
        block.forward = _recomputed(block.forward)
    engine = gc.attach(model, None, want.groups, None, clip="abadi", thresholds=want.thresholds)
    with save_on_cpu():
        losses = entry.losses(model, entry.batch(6, torch.float64))
    engine.backward(losses)
    got = Clipped(gradients(model), engine.unsafe_norms())
    assert faults(got, want.reference, want.groups, want.thresholds, 1e-10) == []


def _recomputed(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: checkpoint(forward, x, use_reentrant=False)  # pyright: ignore


def test_saved_tensors_that_come_back_changed_still_obey_the_bound() -> None:
    """A lossy offload gives other gradients. Norm and sum are of the same ones, so no sample exceeds R."""
    model = ENTRY.model()
    engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=0.5)
    with saved_tensors_hooks(lambda t: t, lambda t: t * 1000 if t.is_floating_point() else t):
        losses = ENTRY.losses(model, ENTRY.batch(1))
    engine.backward(losses)
    total = torch.cat([g.flatten() for g in gradients(model).values()]).norm()
    assert engine.unsafe_norms()["all"] > 0.5 and 0.49 < total <= 0.5


def by_the_largest(t: Tensor) -> Tensor:
    """Eight bits for a number, scaled by the largest of all samples."""
    if not t.is_floating_point() or t.numel() < 2:
        return t
    scale = t.abs().max() / 127
    return (t / scale).round() * scale


class Compresses(nn.Module):
    """Its own hooks stand inside its forward pass, around a checkpoint or not."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.first, self.last, self.checkpointed = nn.Linear(5, 4), nn.Linear(4, 3), checkpointed

    def forward(self, x: Tensor) -> Tensor:
        with saved_tensors_hooks(by_the_largest, lambda t: t):
            h = checkpoint(self.first, x, use_reentrant=False) if self.checkpointed else self.first(x)
            return self.last(h.tanh()).square().sum(1)  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["outside", "inside", "around a checkpoint"])
def test_saved_tensors_that_come_back_changed_are_refused_where_noise_is_to_come(where: str) -> None:
    """The largest number of all samples would be in the gradients of each."""
    model = Compresses(where == "around a checkpoint") if where != "outside" else nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    model, _, engine = attached(model)
    with saved_tensors_hooks(by_the_largest, lambda t: t) if where == "outside" else nullcontext():
        out = model(torch.randn(4, 5))
    with pytest.raises(PrivacyViolation, match=r"by_the_largest, .* give back other numbers than they were given"):
        engine.backward(out if where != "outside" else out.square().sum(1))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_saved_tensors_that_live_elsewhere_are_right_with_noise_to_come_too(dtype: torch.dtype) -> None:
    counts = {"packed": 0, "unpacked": 0}
    found = []
    for context in (nullcontext, save_on_cpu, lambda: packed(counts)):
        model, _, engine = attached(ENTRY.model(dtype))
        with context():
            losses = ENTRY.losses(model, ENTRY.batch(4, dtype))
        engine.backward(losses)
        found.append(gradients(model))
    assert counts["unpacked"] > 5
    assert all(torch.allclose(found[0][n], other[n], rtol=1e-4, atol=1e-6) for other in found[1:] for n in other)


def test_complex_and_empty_tensors_are_told_from_others() -> None:
    tensors = [
        torch.tensor([1 + 2j, 3j]), torch.tensor([1 + 2j, 3j]).conj(), torch.zeros(0), torch.tensor(1.0), torch.tensor(2.0),
        torch.tensor([True, False]), torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), torch.ones(3, dtype=torch.bfloat16),
    ]  # fmt: skip
    assert len({_told(t) for t in tensors}) == len(tensors)
    assert all(_told(t) == _told(t.clone()) for t in tensors)


# ------------------------------------------------------------------ threads


def test_passes_in_other_threads() -> None:
    """One after another: forward in one thread, backward in another."""
    want, engine, model, batch = _reference()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for _ in range(2):
            losses = one.submit(lambda: ENTRY.losses(model, batch)).result()
            other.submit(lambda losses=losses: engine.backward(losses)).result()
            assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())
            engine.discard()


def _reference() -> tuple[dict[str, Tensor], gc.Engine, nn.Module, tuple[Tensor, ...]]:
    model, batch = ENTRY.model(torch.float64), ENTRY.batch(4, torch.float64)
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(ENTRY.losses(model, batch))
    want = gradients(model)
    engine.discard()
    return want, engine, model, batch


class Waits(nn.Module):
    """Stays in the middle of its forward pass until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 2)
        self.inside, self.go_on, self.waits = threading.Event(), threading.Event(), False

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.a(x))
        if self.waits:
            self.inside.set()
            assert self.go_on.wait(20)
        return self.b(x).square().sum(1)


@pytest.mark.parametrize("second", ["forward", "backward", "forward_on", "evaluation"])
def test_two_passes_at_once(second: str) -> None:
    """The one under way goes on undisturbed; what can't be told apart from it is refused."""
    torch.manual_seed(0)
    model = Waits()
    engine = gc.attach(model, None, "layer-wise", None)
    x = torch.randn(4, 5)
    engine.backward(model(x))
    want = gradients(model)
    engine.discard()
    earlier = model(x)
    engine.discard()
    model.waits = True
    with ThreadPoolExecutor(1, "trainer") as pool:
        losses = pool.submit(lambda: model(x))
        assert model.inside.wait(20)
        model.waits = False
        try:
            if second == "evaluation":
                with torch.no_grad():
                    assert model(torch.randn(7, 5)).shape == (7,)
            else:
                with pytest.raises(PrivacyViolation, match=r"thread 'trainer_0' is in a forward pass of this model"):
                    if second == "forward":
                        model(torch.randn(7, 5))
                    elif second == "backward":
                        engine.backward(earlier)
                    else:
                        with engine.forward_on(x):
                            model.a(x)
        finally:
            model.go_on.set()
        if second != "backward":  # which ends what was open
            engine.backward(losses.result())
            assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())
    model(x)  # and others may again


def test_a_pass_that_fails_lets_others_in() -> None:
    model, _, engine = attached()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError):
        pool.submit(lambda: model(torch.randn(4, 6))).result()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))


# ------------------------------------------------------------------ replicas and transforms


def test_data_parallel_on_one_device_is_the_model_itself() -> None:
    """Without GPUs it calls the module as it is."""
    want, engine, model, batch = _reference()
    engine.backward(ENTRY.losses(nn.DataParallel(model), batch))
    assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())


def test_replicas_of_data_parallel_are_refused() -> None:
    """On several GPUs their parameters are copies made out of sight. (Here a replica as torch makes it, on the CPU.)"""
    model, _, engine = attached()
    replica: Any = model._replicate_for_data_parallel()
    with pytest.raises(UnsupportedOperation, match=r"replica of nn\.DataParallel.*DistributedDataParallel"):
        replica(torch.randn(4, 5))
    with torch.no_grad():
        replica(torch.randn(4, 5))
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "vmap": lambda m, x: vmap(m)(x),
    "grad of inputs": lambda m, x: grad(lambda x: m(x).square().sum())(x),
    "jacobian": lambda m, x: jacrev(m)(x),
    "grad of parameters": lambda m, x: grad(lambda p: functional_call(m, p, (x,)).sum())(dict(m.named_parameters())),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func_are_refused(transform: str) -> None:
    model, _, engine = attached()
    with pytest.raises(UnsupportedOperation, match=r"inside a transform of torch\.func"):
        TRANSFORMS[transform](model, torch.randn(4, 5))
    assert all(p.grad is None for p in model.parameters())
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with torch.no_grad():
        vmap(model)(torch.randn(4, 5))


def test_transforms_after_the_model() -> None:
    """On what comes out of it they are ordinary operations."""
    want, engine, model, batch = _reference()
    engine.backward(vmap(nn.functional.cross_entropy)(model(batch[0]), batch[1]))
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, want[n], rtol=0, atol=1e-12)


# ------------------------------------------------------------------ modes


def test_inference_mode_and_no_grad_are_evaluation() -> None:
    want, engine, model, batch = _reference()
    losses = ENTRY.losses(model, batch)
    with torch.inference_mode():
        out = model(batch[0])
        assert out.is_inference() and type(out) is Tensor
    with torch.no_grad():
        assert torch.equal(model(batch[0]), out) and not model(batch[0]).requires_grad
    engine.backward(losses)
    assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())


def test_inputs_from_inference_mode_are_torchs_error() -> None:
    model, _, engine = attached()
    with torch.inference_mode():
        x, labels = ENTRY.batch(4)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        ENTRY.losses(model, (x, labels))
    engine.backward(ENTRY.losses(model, (x.clone(), labels.clone())))


def test_anomaly_detection() -> None:
    want, engine, model, batch = _reference()
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        engine.backward(ENTRY.losses(model, batch))
    assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())


def test_one_process_of_distributed_data_parallel(tmp_path: Any) -> None:
    """Its buckets and averages pass the engine by; both ways of starting the backward pass."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        for reduction in ("none", "mean"):
            model = ENTRY.model()
            wrapped: Any = nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
            engine = gc.attach(wrapped, optimizer, grouped(wrapped, "layer-wise"), plan(), loss_reduction=reduction)
            plain = ENTRY.model()
            single = gc.attach(plain, None, grouped(plain, "layer-wise"), None)
            for seed in range(2):
                losses = ENTRY.losses(wrapped, ENTRY.batch(4, seed=seed))
                if reduction == "none":
                    engine.backward(losses)
                else:
                    losses.mean().backward()
                single.backward(ENTRY.losses(plain, ENTRY.batch(4, seed=seed)))
                for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(p.grad, q.grad)
                optimizer.step()
                optimizer.zero_grad()
                plain.load_state_dict(model.state_dict())
                single.discard()
            assert engine.ledger is not None and engine.ledger.steps == 2
            engine.detach()
    finally:
        distributed.destroy_process_group()


def test_the_unclipped_way_through_a_custom_function_stays_closed() -> None:
    """The guard of all of the above: whatever hides a parameter, its gradient is refused."""

    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ w.t()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
            return None, grads[0].t() @ ctx.saved_tensors[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5, bias=False), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(Hidden.apply(x, self.a.weight)).square().sum(1)  # pyright: ignore

    model = Model()
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(GroupClipError, match=r"'a\.weight' that was not clipped"):
        engine.backward(model(torch.randn(4, 5)))
    assert model.a.weight.grad is None


# ------------------------------------------------------------------ ends that no hook sees


class Stops(nn.Module):
    """Raises what it is told to, in the midst of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(5, 4), nn.Linear(4, 3)
        self.error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.lower(x))
        if self.error is not None:
            raise self.error
        return self.upper(h.flip(0).flip(0)).square().sum(1)


def modes() -> tuple[int, int]:
    """How many modes are on torch's stacks."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


@pytest.mark.parametrize("when", ["in the first pass", "later", "without gradients"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), RuntimeError("no luck")], ids=repr
)
def test_a_pass_that_is_broken_off_leaves_nothing_behind(error: BaseException, when: str) -> None:
    """Also while the error, and so the frames of the pass, are kept (as in a notebook)."""
    torch.manual_seed(0)
    model = Stops().double()
    twin = copy.deepcopy(model)
    batch = torch.randn(6, 5, dtype=torch.float64)
    groups = {"all": [name for name, _ in twin.named_parameters()]}
    want = clipped_sum(twin, lambda m, b: m(*b), (batch,), groups, "abadi", {"all": 0.1})
    engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=0.1)
    if when != "in the first pass":
        engine.backward(model(batch))
        engine.discard()
    before = modes()
    for _ in range(3):
        model.error = error
        with pytest.raises(type(error)) as kept, torch.set_grad_enabled(when != "without gradients"):
            model(batch)
        assert modes() == before and kept.value is error
        model.error = None
        engine.backward(model(batch))
        assert modes() == before
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(gradient, want.sums[name], rtol=1e-10, atol=1e-12)
        engine.discard()
    engine.detach()
    assert "_compiled_call_impl" not in vars(model) and modes() == before
