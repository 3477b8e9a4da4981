"""Noise is added to every coordinate, by as many threads as by one, whatever fails and wherever the memory is."""

import threading

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import groupclip as gc
from check_attached import plan
from groupclip.errors import PrivacyViolation
from groupclip.noise import normals
from groupclip.noise.keystream import Keystream, new_key
from groupclip.noise.normals import CHUNK, SINGLE_CHUNK, add_normals, workspace_bytes
from groupclip.noise.sources import SecureNoise


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_threads_change_nothing(monkeypatch, dtype):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    key, made, chunk = new_key(), [], SINGLE_CHUNK if dtype == torch.float32 else CHUNK
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        tensor = torch.ones(9 * chunk + 5, dtype=dtype)
        add_normals([(tensor, 2.0)], Keystream(key, "test"))
        made.append(tensor)
    assert all(torch.equal(made[0], other) for other in made[1:])
    each = 9 * chunk + 32 if dtype == torch.float32 else 16 * chunk
    assert workspace_bytes([9 * chunk + 5], dtype) == 4 * each


def test_tensors_together_get_what_they_get_one_after_another(two_threads, monkeypatch):
    """Whatever their types, sizes and standard deviations: float32 ones of two kinds, float64, half precision."""
    monkeypatch.setattr(normals, "SINGLE_CHUNK", 20_000)
    monkeypatch.setattr(normals, "CHUNK", 5_000)
    sizes = [(50_000, torch.float32), (20_001, torch.float32), (7, torch.float32), (30_000, torch.float64), (9_000, torch.bfloat16)]
    key, made = new_key(), []
    for together in (True, False):
        sums = [(torch.ones(size, dtype=dtype), float(n + 1)) for n, (size, dtype) in enumerate(sizes)]
        versions, stream = [tensor._version for tensor, _ in sums], Keystream(key, "test")
        for few in [sums] if together else [[one] for one in sums]:
            add_normals(few, stream)
        assert all(tensor._version > version for (tensor, _), version in zip(sums, versions, strict=True))
        assert all((tensor != 1).double().mean() > 0.95 for tensor, _ in sums)
        made.append([tensor for tensor, _ in sums])
    assert all(map(torch.equal, *made))
    assert not torch.equal(made[0][0][:20_001], made[0][1])  # the twin: not one draw for all


def test_an_error_in_any_thread_is_raised(two_threads, monkeypatch):
    raised = threading.Event()

    class Failing:
        def __init__(self, main: bool) -> None:
            self.main = main

        def fill(self, buffer):
            if (threading.current_thread() is threading.main_thread()) == self.main:
                raised.set()
                raise MemoryError

    # outside of the turn: whoever doesn't fail waits until the other has had one
    monkeypatch.setattr(normals.InSingle, "add", lambda self, piece, std: raised.wait(60))
    for main in (True, False):
        raised.clear()
        with pytest.raises(MemoryError):
            add_normals([(torch.zeros(9 * SINGLE_CHUNK), 1.0)], Failing(main))


class Ending:
    """A stream that ends after some reads."""

    def __init__(self, reads: int) -> None:
        self.reads = reads

    def fill(self, buffer):
        self.reads -= 1
        if self.reads < 0:
            raise KeyboardInterrupt
        buffer.view(np.int32)[:] = 1 << 29


def test_after_an_error_no_thread_goes_on_and_autograd_knows(two_threads):
    tensor = torch.zeros(12 * SINGLE_CHUNK)
    version = tensor._version
    with pytest.raises(KeyboardInterrupt):
        add_normals([(tensor, 1.0)], Ending(3))
    assert int((tensor != 0).sum()) == 3 * SINGLE_CHUNK
    assert tensor._version > version
    assert not any(thread.name == "groupclip-noise" for thread in threading.enumerate())


def test_without_another_thread_it_is_done_by_one(two_threads, monkeypatch):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    key = new_key()
    alone, helped = torch.zeros(9 * SINGLE_CHUNK), torch.zeros(9 * SINGLE_CHUNK)
    add_normals([(helped, 1.0)], Keystream(key, "test"))
    monkeypatch.setattr(threading.Thread, "start", no_more)
    add_normals([(alone, 1.0)], Keystream(key, "test"))
    assert torch.equal(alone, helped)


class LoggedTensor(torch.Tensor):
    """A subclass of no other use."""


def noisy(x):
    y = x * 1.0
    SecureNoise().add_(y, 1.0)
    return y


def in_mode(x):
    class Mode(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Mode.seen += "copy_" in func.__name__
            return func(*args, **(kwargs or {}))

    with Mode():
        y = noisy(x)
    assert Mode.seen
    return y


@pytest.mark.filterwarnings("ignore:.*Dynamo does not know how to trace")
@pytest.mark.parametrize("count", [5, 3 * CHUNK])
@pytest.mark.parametrize(
    "way",
    [
        torch.func.functionalize(noisy),
        in_mode,
        lambda x: noisy(x.as_subclass(LoggedTensor)),
        lambda x: noisy(torch.conj(torch.complex(x, x)).imag),
        torch.compile(noisy, backend="eager"),
    ],
    ids=["functionalize", "dispatch mode", "subclass", "negated", "compiled"],
)
def test_memory_that_numpy_can_not_reach_gets_its_noise(way, count, monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    assert (way(torch.zeros(count)) != 0).all()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_step_has_noise(monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = gc.attach(model, optimizer, "all-layer", plan())
    before = model.weight.detach().clone()
    engine.backward(model(torch.zeros(2, 6)).square().sum(1))
    torch.compile(optimizer.step, backend="eager")()
    assert (model.weight.detach() != before).all()


def test_a_step_that_failed_is_not_repeated(two_threads):
    """Some of the gradient has noise by then: the engine doesn't take it for the sum that the backward pass left."""

    class Failing:
        secure = True

        def add_(self, tensor, std):
            add_normals([(tensor, std)], Ending(1))

    model = torch.nn.Linear(4 * SINGLE_CHUNK, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = gc.attach(model, optimizer, "all-layer", plan(), noise=Failing())
    engine.backward(model(torch.ones(2, 4 * SINGLE_CHUNK)).square().sum(1))
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    with pytest.raises(PrivacyViolation, match="isn't what the last backward pass left"):
        optimizer.step()


@pytest.mark.parametrize("std", [1e300, 1e307, 1e308])
def test_the_largest_noise_is_finite_as_long_as_it_can_be(std, monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    tensor = torch.zeros(10_000, dtype=torch.float64)
    add_normals([(tensor, std)], Keystream(new_key(), "test"))
    assert not tensor.isnan().any()
    assert std > 1e307 or tensor.isfinite().all()


@pytest.mark.parametrize("way", [True, False])
def test_noise_in_a_tensor_that_autograd_kept_is_noticed(monkeypatch, way):
    monkeypatch.setattr(normals, "vectorised", lambda: way)
    x, kept = torch.ones(3, requires_grad=True), torch.ones(3)
    product = (x * kept).sum()
    add_normals([(kept, 1.0)], Keystream(new_key(), "test"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("way", [True, False])
def test_extreme_sums_neither_warn_nor_raise(monkeypatch, way):
    monkeypatch.setattr(normals, "vectorised", lambda: way)
    with np.errstate(all="raise"):
        large, small = torch.full((1_000,), 3e38), torch.zeros(1_000)
        add_normals([(large, 1e38)], Keystream(new_key(), "test"))
        add_normals([(small, 1e-310)], Keystream(new_key(), "test"))
    assert large.isinf().any() and not large.isnan().any()
    assert (small == 0).all()


def test_negated_views_get_their_noise():
    whole = torch.zeros(5, dtype=torch.complex128)
    view = whole.conj().imag
    assert view.is_neg()
    add_normals([(view, 1.0)], Keystream(new_key(), "test"))
    assert (whole.imag != 0).all()
    assert (whole.real == 0).all()
