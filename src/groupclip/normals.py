"""Standard normals from a secret stream, on the CPU: 128 bits of it for two, by Box and Muller's method in float64.

Word pairs ``(v, w)``, read as signed 64-bit integers, give ``u = |v| / 2^63`` in (0, 1] and the angle ``a = pi w / 2^63``; then
``r = sqrt(-2 ln u)`` times ``cos a`` and ``sin a`` are two independent normals (Ann. Math. Stat. 29, 1958). Signed words need no
masks, and a small ``u`` keeps all its 53 bits of precision, so the tail runs on to 9.3 standard deviations.

The same is computed in two ways, equal up to rounding: where NumPy has vector instructions for logarithm and tangent (AVX-512) it
is twice as fast as torch, in threads of ours, as NumPy has none.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

CHUNK = 3 << 15  # coordinates drawn at a time: their words, and as much to work with, nearly stay in a core's own cache
THREADS = 4  # at most: the stream itself, which is read by one after the other, takes a quarter of the time
_LARGE = 1e300  # of a standard deviation, so that twice a radius is still finite
_NUMPY_DTYPES = (torch.float64, torch.float32)  # of float16, torch rounds in two steps, here too


class Stream(Protocol):
    """What words are read from: :class:`groupclip.keystream.Keystream`."""

    def fill(self, buffer: np.ndarray) -> None:
        """Overwrites a contiguous 1-D array of integers with the next words."""
        ...


class Workspace(Protocol):
    """What one thread reuses for all its chunks."""

    words: np.ndarray

    def add(self, piece: Tensor, std: float) -> None:
        """Adds to ``piece`` the normals, times ``std``, of the words that were filled in: two for each pair of coordinates."""
        ...


def add_normals(tensor: Tensor, std: float, stream: Stream) -> None:
    """Adds independent ``N(0, std^2)`` to every coordinate, in place: each sum is formed in float64 and cast last.

    The same words give the same noise, whatever the number of threads: as many as torch has on the CPU, four at most. After an
    exception some coordinates have noise and others not, and no thread goes on.

    Args:
        tensor: not empty, of a real floating-point type, on the CPU or any device that takes a copy.
        std: standard deviation.
        stream: is read by one thread at a time, in the order of the coordinates.
    """
    inside = _reachable(tensor) and std < _LARGE and vectorised()
    kind, threads = (InNumPy, _threads(tensor.numel())) if inside else (InTorch, 1)
    workspaces = [kind(min(tensor.numel(), CHUNK)) for _ in range(threads)]
    if inside:
        torch.autograd.graph.increment_version(tensor)  # NumPy writes behind autograd's back
    left, turn, stop = pieces(tensor.detach(), CHUNK), threading.Lock(), threading.Event()

    def work(workspace: Workspace) -> None:
        try:
            while not stop.is_set():
                with turn:
                    piece = next(left, None)
                    if piece is None:
                        return
                    stream.fill(workspace.words[: piece.numel() + piece.numel() % 2])
                workspace.add(piece, std)
        except BaseException:
            stop.set()
            raise

    with _helpers(work, workspaces[1:], stop):
        work(workspaces[0])


@contextmanager
def _helpers(
    work: Callable[[Workspace], None], workspaces: Sequence[Workspace], stop: threading.Event
) -> Iterator[None]:
    """Threads that work beside this one, as far as they can be started: for one call, as a forked child wouldn't have them."""
    errors: list[BaseException] = []

    def help_out(workspace: Workspace) -> None:
        try:
            work(workspace)
        except BaseException as error:
            errors.append(error)

    started: list[threading.Thread] = []
    try:
        for workspace in workspaces:
            thread = threading.Thread(target=help_out, args=(workspace,), name="groupclip-noise")
            try:
                thread.start()
            except RuntimeError:  # too many, or the interpreter is shutting down
                break
            started.append(thread)
        yield
    finally:
        stop.set()  # all is taken by now, or this thread was interrupted
        for thread in started:
            thread.join()
    if errors:
        raise errors.pop()


def workspace_bytes(count: int) -> int:
    """What the workspaces for a tensor of ``count`` coordinates take, at most."""
    size = min(count, CHUNK)
    return _threads(count) * 16 * (size + size % 2)


def _threads(count: int) -> int:
    """How many work on ``count`` coordinates where NumPy does: for less than two chunks a helper isn't worth its start."""
    return max(1, min(torch.get_num_threads(), THREADS, 1 + count // (2 * CHUNK)))


def _reachable(tensor: Tensor) -> bool:
    """Whether NumPy may write the tensor's memory: it has some, and nothing between it and torch wants to see what is done."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype in _NUMPY_DTYPES
        and not (tensor.is_neg() or tensor.is_inference())
        and not (torch.compiler.is_compiling() or torch._C._is_tracing() or is_in_torch_dispatch_mode())
        and not (_functorch.is_functionaltensor(tensor) or _functorch.is_functorch_wrapped_tensor(tensor))
        and tensor.data_ptr() != 0
    )


@functools.cache
def vectorised() -> bool:
    """Whether NumPy computes logarithms and tangents of float64 by more than the instructions that every such processor has.

    Elsewhere than on Linux its builds have no vector code for the tangent, whatever they say.
    """
    functions = np.lib.introspect.opt_func_info(func_name="^(log|tan)$", signature="float64")
    used = [by["current"] for signatures in functions.values() for by in signatures.values()]
    return sys.platform == "linux" and len(used) == 2 and not any("baseline" in one for one in used)


class InNumPy:
    """With ``t = tan(a / 2)``: ``cos a = 2 / (1 + t^2) - 1`` and ``sin a = 2 t / (1 + t^2)``, one function instead of two.

    As precise: an error of t moves the sine by no more of itself, and the cosine by no more of 1.
    """

    def __init__(self, count: int) -> None:
        self.words = _empty(count, torch.int64).numpy()
        self._spare = _empty(count, torch.float64).numpy()

    def add(self, piece: Tensor, std: float) -> None:
        target = piece.numpy()
        with np.errstate(all="ignore"):  # as in torch: a sum that is too large for a dtype is infinite there
            np.add(target, self.normals(target.size, std).reshape(target.shape), out=target, casting="same_kind")

    def normals(self, count: int, std: float) -> np.ndarray:
        """``count`` normals times ``std``, float64; valid until the next call. Uses the words up."""
        pairs = (count + 1) // 2
        v, w = self.words[:pairs], self.words[pairs : 2 * pairs]
        radius, tangent = self._spare[:pairs], self._spare[pairs : 2 * pairs]
        np.bitwise_or(v, 1, out=v)  # u = 0 would be an infinite normal
        np.copyto(radius, v)
        np.abs(radius, out=radius)
        np.multiply(radius, 2.0**-63, out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(radius, std, out=radius)
        np.multiply(w, math.pi * 2.0**-64, out=tangent)
        np.tan(tangent, out=tangent)
        normals = self.words[: 2 * pairs].view(np.float64)
        cosines, sines = normals[:pairs], normals[pairs:]
        np.multiply(tangent, tangent, out=cosines)
        np.add(cosines, 1.0, out=cosines)
        np.divide(radius, cosines, out=cosines)
        np.add(cosines, cosines, out=cosines)
        np.multiply(cosines, tangent, out=sines)
        np.subtract(cosines, radius, out=cosines)
        return normals[:count]


class InTorch:
    """By torch's logarithm, cosine and sine, which run in threads of their own."""

    def __init__(self, count: int) -> None:
        self.words = _empty(count, torch.int64).numpy()
        self._spare = _empty(count, torch.float64)

    def add(self, piece: Tensor, std: float) -> None:
        noise = self.normals(piece.numel(), std).view(piece.shape)
        if piece.device.type == "cpu":
            # As piece.add_(noise), which allocates a float64 copy: new pages every time, at the price of the noise.
            total = self._spare[: piece.numel()].view(piece.shape)
            piece.copy_(total.copy_(piece).add_(noise))
        else:
            piece.add_(noise.to(torch.float32).to(piece.device))  # such devices may lack float64

    def normals(self, count: int, std: float) -> Tensor:
        """``count`` normals times ``std``, float64; valid until the next call. Uses the words up."""
        pairs = (count + 1) // 2
        words, uniforms = torch.from_numpy(self.words[: 2 * pairs]), self._spare[: 2 * pairs]
        words[:pairs].bitwise_or_(1)  # u = 0 would be an infinite normal
        uniforms.copy_(words)
        radius, angle = uniforms[:pairs], uniforms[pairs:]
        radius.abs_().mul_(2.0**-63).log_().mul_(-2.0).sqrt_().mul_(std)
        angle.mul_(math.pi * 2.0**-63)
        normals = words.view(torch.float64)
        torch.cos(angle, out=normals[:pairs])
        torch.sin(angle, out=normals[pairs:])
        return normals.view(2, pairs).mul_(radius).view(-1)[:count]


def _empty(count: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(count + count % 2, dtype=dtype, device="cpu")  # pairs


def pieces(tensor: Tensor, limit: int) -> Iterator[Tensor]:
    """Views of at most ``limit`` coordinates that together cover every coordinate once."""
    if tensor.numel() <= limit:
        yield tensor
    elif tensor.is_contiguous():
        flat = tensor.view(-1)
        yield from (
            flat[start : start + limit] for start in range(0, len(flat), limit)
        )  # split makes all of them at once
    elif rows := limit * tensor.shape[0] // tensor.numel():
        yield from tensor.split(rows)
    else:
        for row in tensor.unbind(0):
            yield from pieces(row, limit)
