"""Both ways of making normals from words give the exact ones, and as many threads as one."""

import math
import os
import subprocess
import sys
import threading

import mpmath
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import groupclip as gc
from check_attached import plan
from groupclip import normals
from groupclip.errors import PrivacyViolation
from groupclip.keystream import Keystream, new_key
from groupclip.noise import SecureNoise
from groupclip.normals import CHUNK, InNumPy, InTorch, add_normals, workspace_bytes

WAYS = [InNumPy, InTorch]
EDGES = [0, 1, -1, 2**62, -(2**62), 2**61, 2**63 - 1, -(2**63), -(2**63) + 1, 2**40, 3]


def words(count: int) -> np.ndarray:
    return Keystream(new_key(), "test").words(count).view(np.int64)


def exactly(v: int, w: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The two normals of a pair of words, in 60 digits; u is a float64."""
    with mpmath.workdps(60):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(float(abs(v | 1))) / 2**63))
        angle = mpmath.pi * w / 2**63
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def worst_error(way, drawn: np.ndarray) -> float:
    """Over all pairs: the error of a normal, in units of 1 + |z|."""
    workspace = way(len(drawn))
    workspace.words[:] = drawn
    got = np.asarray(workspace.normals(len(drawn), 1.0)).copy()
    pairs = len(drawn) // 2
    worst = 0.0
    for i in range(pairs):
        for z, right in zip(got[[i, pairs + i]], exactly(int(drawn[i]), int(drawn[pairs + i])), strict=True):
            worst = max(worst, float(abs(z - right) / (1 + abs(right))))
    return worst


@pytest.mark.parametrize("way", WAYS)
def test_normals_are_those_of_the_formula_to_float64s_precision(way):
    every = np.array([(v, w) for v in EDGES for w in EDGES], dtype=np.int64)
    assert worst_error(way, np.concatenate([every[:, 0], every[:, 1]])) < 1e-14
    assert worst_error(way, words(2_000)) < 1e-14


def test_twin_of_float32s_precision_is_seen():
    class Single(InTorch):
        def normals(self, count, std):
            return super().normals(count, std).float().double()

    assert worst_error(Single, words(200)) > 1e-14


def test_both_ways_draw_the_same():
    drawn = words(2 * CHUNK)
    made = []
    for way in WAYS:
        workspace = way(len(drawn))
        workspace.words[:] = drawn
        made.append(np.asarray(workspace.normals(len(drawn) - 1, 250.0)).copy())
    np.testing.assert_allclose(*made, rtol=0, atol=250 * 1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_threads_change_nothing(monkeypatch, dtype):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    key, made = new_key(), []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        tensor = torch.ones(9 * CHUNK + 5, dtype=dtype)
        add_normals(tensor, 2.0, Keystream(key, "test"))
        made.append(tensor)
    assert all(torch.equal(made[0], other) for other in made[1:])
    assert workspace_bytes(9 * CHUNK + 5) == 4 * 16 * CHUNK


def test_an_error_in_any_thread_is_raised(monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    class Failing:
        def __init__(self, main: bool) -> None:
            self.main = main

        def fill(self, buffer):
            if (threading.current_thread() is threading.main_thread()) == self.main:
                raise MemoryError
            threading.Event().wait(0.01)  # the other one has its turn

    for main in (True, False):
        with pytest.raises(MemoryError):
            add_normals(torch.zeros(9 * CHUNK), 1.0, Failing(main))


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


class Ending:
    """A stream that ends after some reads."""

    def __init__(self, reads: int) -> None:
        self.reads = reads

    def fill(self, buffer):
        self.reads -= 1
        if self.reads < 0:
            raise KeyboardInterrupt
        buffer[:] = 1 << 61


def test_after_an_error_no_thread_goes_on_and_autograd_knows(two_threads):
    tensor = torch.zeros(40 * CHUNK)
    version = tensor._version
    with pytest.raises(KeyboardInterrupt):
        add_normals(tensor, 1.0, Ending(3))
    assert int((tensor != 0).sum()) == 3 * CHUNK
    assert tensor._version > version
    assert not any(thread.name == "groupclip-noise" for thread in threading.enumerate())


def test_without_another_thread_it_is_done_by_one(two_threads, monkeypatch):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    key = new_key()
    alone, helped = torch.zeros(9 * CHUNK), torch.zeros(9 * CHUNK)
    add_normals(helped, 1.0, Keystream(key, "test"))
    monkeypatch.setattr(threading.Thread, "start", no_more)
    add_normals(alone, 1.0, Keystream(key, "test"))
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
            add_normals(tensor, std, Ending(1))

    model = torch.nn.Linear(4 * CHUNK, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = gc.attach(model, optimizer, "all-layer", plan(), noise=Failing())
    engine.backward(model(torch.ones(2, 4 * CHUNK)).square().sum(1))
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    with pytest.raises(PrivacyViolation, match="isn't what the last backward pass left"):
        optimizer.step()


@pytest.mark.parametrize("std", [1e300, 1e307, 1e308])
def test_the_largest_noise_is_finite_as_long_as_it_can_be(std, monkeypatch):
    monkeypatch.setattr(normals, "vectorised", lambda: True)
    tensor = torch.zeros(10_000, dtype=torch.float64)
    add_normals(tensor, std, Keystream(new_key(), "test"))
    assert not tensor.isnan().any()
    assert std > 1e307 or tensor.isfinite().all()


@pytest.mark.parametrize("way", [True, False])
def test_noise_in_a_tensor_that_autograd_kept_is_noticed(monkeypatch, way):
    monkeypatch.setattr(normals, "vectorised", lambda: way)
    x, kept = torch.ones(3, requires_grad=True), torch.ones(3)
    product = (x * kept).sum()
    add_normals(kept, 1.0, Keystream(new_key(), "test"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("way", [True, False])
def test_extreme_sums_neither_warn_nor_raise(monkeypatch, way):
    monkeypatch.setattr(normals, "vectorised", lambda: way)
    with np.errstate(all="raise"):
        large, small = torch.full((1_000,), 3e38), torch.zeros(1_000)
        add_normals(large, 1e38, Keystream(new_key(), "test"))
        add_normals(small, 1e-310, Keystream(new_key(), "test"))
    assert large.isinf().any() and not large.isnan().any()
    assert (small == 0).all()


def test_negated_views_get_their_noise():
    whole = torch.zeros(5, dtype=torch.complex128)
    view = whole.conj().imag
    assert view.is_neg()
    add_normals(view, 1.0, Keystream(new_key(), "test"))
    assert (whole.imag != 0).all()
    assert (whole.real == 0).all()


def test_what_numpy_can_do_is_found_out():
    """With its vector instructions switched off, it is torch that computes: with the same noise up to rounding."""
    program = (
        "import torch\nfrom groupclip import normals\nfrom groupclip.noise import InsecureNoise\n"
        "x = torch.zeros(5, dtype=torch.float64)\nInsecureNoise(3).add_(x, 1.0)\nprint(normals.vectorised(), *x.tolist())"
    )
    told = []
    for features in ("", " ".join(_dispatched())):
        environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features}
        out = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        told.append(out.stdout.split())
    assert told[0][0] == str(normals.vectorised())
    assert told[1][0] == "False"
    np.testing.assert_allclose([float(z) for z in told[0][1:]], [float(z) for z in told[1][1:]], rtol=0, atol=1e-13)


def _dispatched() -> list[str]:
    """What this NumPy can be told to leave alone, of what this machine has."""
    functions = np.lib.introspect.opt_func_info(func_name="^(log|tan|exp|sin|cos)$")
    targets = [
        one for signatures in functions.values() for by in signatures.values() for one in by["available"].split()
    ]
    return sorted({one for one in targets if "baseline" not in one})


def test_farthest_draw():
    for way in WAYS:
        workspace = way(2)
        workspace.words[:] = [0, 0]
        assert np.asarray(workspace.normals(2, 1.0))[0] == pytest.approx(math.sqrt(126 * math.log(2)), rel=1e-15)
