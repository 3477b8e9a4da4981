"""Gaussian noise added to tensors chunk by chunk, in threads where NumPy computes it, which has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .boxmuller import InNumPy, InTorch, Workspace, vectorised
from .single import InSingle, bytes_for, suits

CHUNK = 3 << 15  # coordinates drawn at a time: their words, and as much to work with, nearly stay in a core's own cache
SINGLE_CHUNK = 3 << 17  # the same in float32, whose operations are so short that the interpreter between them tells
THREADS = 4  # at most: the stream itself, which is read by one after the other, takes a quarter of the time
_FEW = 1 << 14  # coordinates up to which float64 is the quicker way: float32's rare pairs cost as much as these in any case
_LARGE = 1e300  # of a standard deviation, so that twice a radius is still finite
_NUMPY_DTYPES = (torch.float64, torch.float32)  # of float16, torch rounds in two steps, here too


class Stream(Protocol):
    """Gives words, as :class:`groupclip.noise.keystream.Keystream` does."""

    def fill(self, buffer: np.ndarray) -> None:
        """Overwrites a contiguous 1-D array of integers with the next words."""
        ...


def add_normals(sums: Sequence[tuple[Tensor, float]], stream: Stream) -> None:
    """Adds independent ``N(0, std^2)`` to every coordinate of every tensor, in place: each sum is rounded once.

    To float32 in memory that NumPy reaches, if it isn't small, normals of :mod:`groupclip.noise.single` are added; to all else
    those of :mod:`groupclip.noise.boxmuller`, of which each sum is formed in float64 and cast last.

    The same words give the same noise, whatever the number of threads (as many as torch has on the CPU, four at most), and
    whether tensors come together or one after another; together they share threads and memory. After an exception some
    coordinates have noise and others not, and no thread goes on.

    Args:
        sums: tensors, each with its standard deviation: not empty, of a real floating-point type, on the CPU or any device that
            takes a copy.
        stream: is read by one thread at a time, in the order of the coordinates.
    """
    for kind, alike in groupby(sums, lambda one: _kind(*one)):
        _add_alike(kind, list(alike), stream)


def _add_alike(kind: type[InSingle | InNumPy | InTorch], sums: Sequence[tuple[Tensor, float]], stream: Stream) -> None:
    chunk, sizes = _chunk(kind is InSingle), [tensor.numel() for tensor, _ in sums]
    threads = 1 if kind is InTorch else _threads(sum(sizes), chunk)
    workspaces = [kind(min(max(sizes), chunk)) for _ in range(threads)]
    if kind is not InTorch:
        torch.autograd.graph.increment_version([tensor for tensor, _ in sums])  # NumPy writes behind autograd's back
    left = ((piece, std) for tensor, std in sums for piece in pieces(tensor.detach(), chunk))
    if threads == 1:
        for piece, std in left:
            stream.fill(workspaces[0].needed(piece.numel()))
            workspaces[0].add(piece, std)
        return
    turn, stop = threading.Lock(), threading.Event()

    def work(workspace: Workspace) -> None:
        try:
            while not stop.is_set():
                with turn:
                    piece, std = next(left, (None, 0.0))
                    if piece is None:
                        return
                    stream.fill(workspace.needed(piece.numel()))
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


def workspace_bytes(sizes: Sequence[int], dtype: torch.dtype) -> int:
    """Return what the workspaces for tensors of so many coordinates of this type take, at most, where they get noise together."""
    found = 0
    for single in (True, False):
        alike = [size for size in sizes if (dtype == torch.float32 and size > _FEW) == single]
        if alike:
            chunk = _chunk(single)
            size = min(max(alike), chunk)
            found = max(found, _threads(sum(alike), chunk) * (bytes_for(size) if single else 16 * (size + size % 2)))
    return found


def _kind(tensor: Tensor, std: float) -> type[InSingle] | type[InNumPy] | type[InTorch]:
    """Return the way of making normals for this tensor."""
    if not _reachable(tensor):
        return InTorch
    if tensor.dtype == torch.float32 and suits(std) and tensor.numel() > _FEW:
        return InSingle
    return InNumPy if std < _LARGE and vectorised() else InTorch


def _chunk(single: bool) -> int:
    return SINGLE_CHUNK if single else CHUNK


def _threads(count: int, chunk: int) -> int:
    """Return how many work on ``count`` coordinates where NumPy does: for less than two chunks a helper isn't worth its start."""
    return max(1, min(torch.get_num_threads(), THREADS, 1 + count // (2 * chunk)))


def _reachable(tensor: Tensor) -> bool:
    """Return whether NumPy may write the tensor's memory: there is some, and nothing between it and torch wants to see it."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype in _NUMPY_DTYPES
        and not (tensor.is_neg() or tensor.is_inference())
        and not (torch.compiler.is_compiling() or torch._C._is_tracing() or is_in_torch_dispatch_mode())
        and not (_functorch.is_functionaltensor(tensor) or _functorch.is_functorch_wrapped_tensor(tensor))
        and tensor.data_ptr() != 0
    )


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
