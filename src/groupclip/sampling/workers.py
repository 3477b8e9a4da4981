"""Worker processes that read micro-batches ahead of the loop.

What is drawn is decided in the main process. A worker is told the rows of one micro-batch after another, and gives back what is
in them: it never sees a key, nor the state of the sampler, because it is started afresh ("spawn") and not as a copy of the
process that holds them. Which step is taken on which batch is the main process's business alone; a worker's place in that is
the place of :meth:`groupclip.sampling.readers.Fetch.__call__`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import secrets
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from groupclip.sampling.readers import Fetch, Piece, Reader

_MOST = 1024  # processes, and micro-batches each
_SENDABLE = (str, bytes, int, float, complex, type(None))

Steps = Iterator[tuple[list[Piece], Iterator[Any]]]
"""The pieces of each step, and the micro-batches read from them."""


@dataclass(frozen=True)
class Workers:
    """Says how many processes read, and how many micro-batches each has under way. None: the main process reads.

    Raises:
        TypeError, ValueError: not a whole number, or less than 0 (``number``) or 1 (``prefetch``), more than 1,024.
    """

    number: int = 0
    prefetch: int = 2

    def __post_init__(self) -> None:
        for name, value, least in (("num_workers", self.number, 0), ("prefetch", self.prefetch, 1)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r} must be a whole number (int)")
            if value < least:
                raise ValueError(f"{name}={value} must be >= {least}")
            if value > _MOST:
                raise ValueError(f"{name}={value} must be <= {_MOST}: a machine dies of a mistyped number of processes")


@contextlib.contextmanager
def steps_read(reader: Reader, plans: Iterable[list[Piece]], workers: Workers) -> Iterator[Steps]:
    """Yield the steps of ``plans``, in order, with their micro-batches. The workers end when this is left, however that happens.

    A step may be read late, in part, or not at all; whatever is read after the workers have ended is read by the main process.
    """
    if workers.number == 0:
        yield ((pieces, read_here(reader, pieces)) for pieces in plans)
        return
    for_steps, for_workers = itertools.tee(plans)
    ahead = _Ahead(reader.fetch, for_workers, workers)
    try:
        yield ((pieces, _by_workers(reader, pieces, ahead, step)) for step, pieces in enumerate(for_steps))
    finally:
        ahead.close()


def read_here(reader: Reader, pieces: list[Piece]) -> Iterator[Any]:
    """Yield micro-batches that the main process reads."""
    for piece in pieces:
        yield reader.laid_out(piece, reader.fetch(piece.rows))


def _by_workers(reader: Reader, pieces: list[Piece], ahead: _Ahead, step: int) -> Iterator[Any]:
    # made now, not at the first micro-batch: what arrives for a step without a shelf is dropped
    return _from_shelf(reader, pieces, ahead, ahead.shelf(step))


def _from_shelf(reader: Reader, pieces: list[Piece], ahead: _Ahead, shelf: _Shelf) -> Iterator[Any]:
    for place, piece in enumerate(pieces):
        yield reader.laid_out(piece, ahead.take(shelf, place, piece.rows))


class _Shelf:
    """Keeps what arrived for one step and wasn't taken yet. It goes with the step: whoever skips micro-batches keeps none."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.arrived: dict[int, Any] = {}


class _Ahead:
    """Rows to the workers, micro-batches back, in the order of the steps."""

    def __init__(self, fetch: Fetch, plans: Iterator[list[Piece]], workers: Workers) -> None:
        orders = (
            _Order(step, place, piece.rows) for step, pieces in enumerate(plans) for place, piece in enumerate(pieces)
        )
        loader = DataLoader(
            _Read(fetch),
            batch_size=None,  # an order is a whole micro-batch
            sampler=orders,
            collate_fn=_as_it_is,
            num_workers=workers.number,
            prefetch_factor=workers.prefetch,
            multiprocessing_context="spawn",
            worker_init_fn=_Beginning(torch.get_default_dtype()),
            # of random augmentations in the workers; torch's global one is left alone, and tells nothing of it
            generator=torch.Generator().manual_seed(secrets.randbits(63)),
        )
        self._fetch = fetch
        self._shelves: weakref.WeakValueDictionary[int, _Shelf] = weakref.WeakValueDictionary()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # the error itself is told
                self._results: Iterator[_Result] | None = iter(loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"the data set or the collate function can't be sent to worker processes: {error}. Define both at the top level of "
                "a module (no lambda, no open file), or leave num_workers out"
            ) from error

    def shelf(self, step: int) -> _Shelf:
        shelf = self._shelves[step] = _Shelf(step)
        return shelf

    def take(self, shelf: _Shelf, place: int, rows: list[int]) -> Any:
        """Return the micro-batch of a step's place.

        Raises:
            RuntimeError: a worker ended by itself.
            Exception: what reading the rows raised, as without workers. The workers have ended then.
        """
        while place not in shelf.arrived and self._results is not None:
            result = self._next(self._results)
            if (for_step := self._shelves.get(result.step)) is not None:
                for_step.arrived[result.place] = result.samples
        if place not in shelf.arrived:
            return self._fetch(rows)
        samples = shelf.arrived.pop(place)
        if isinstance(samples, _Failed):
            self.close()
            raise samples.error from _InWorker(samples.text)
        return samples

    def _next(self, results: Iterator[_Result]) -> _Result:
        try:
            return next(results)
        except BaseException as error:
            self.close()
            del results
            traceback.clear_frames(error.__traceback__)  # which hold torch's iterator, and so the workers
            if type(error) is not RuntimeError:
                raise
            raise RuntimeError(
                f"a worker process that reads the data ended by itself: {error}\nWorkers begin by importing the script that is "
                "run: what it does must stand below `if __name__ == '__main__':`, and the data set's class in a module. A worker "
                "may also have run out of memory. num_workers=0 reads in this process, and shows errors where they happen"
            ) from error

    def close(self) -> None:
        """End the workers. Torch's iterator does so when nobody has it any more."""
        self._results = None


class _Order(NamedTuple):
    step: int
    place: int
    rows: list[int]


class _Result(NamedTuple):
    step: int
    place: int
    samples: Any


class _Failed(NamedTuple):
    """Reading raised an error. ``text``: its traceback in the worker."""

    error: Exception
    text: str


class _InWorker(Exception):
    """Shows the traceback of a worker as the cause of an error."""

    def __init__(self, text: str) -> None:
        super().__init__(f"in a worker process:\n{text}")


class _Read(Dataset[_Result]):
    """Carries orders out, in a worker."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def __getitem__(self, order: _Order) -> _Result:
        try:
            samples = self._fetch(order.rows)
            _check_sendable(samples)
        except Exception as error:
            samples = _Failed(_sendable(error), traceback.format_exc())
        return _Result(order.step, order.place, samples)


@dataclass(frozen=True)
class _Beginning:
    """Does what a worker does first: it takes over what torch keeps for a process, and leaves ending to the main process.

    Ctrl-C and a signal to the terminal's processes would reach workers too, while the main process may be finishing its step.
    A worker whose main process is gone ends by itself within seconds (torch looks after that).
    """

    dtype: torch.dtype

    def __call__(self, worker: int) -> None:
        torch.set_default_dtype(self.dtype)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.excepthook = _main_process_left
        if sys.platform != "win32":
            os.setsid()


def _main_process_left(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints what nobody caught, but not that the main process was interrupted while it fetched a tensor.

    The thread of :mod:`multiprocessing` that hands memory over prints such a connection, cut off, through ``sys.excepthook``: after
    Ctrl-C a user would read a second traceback, about nothing that went wrong.
    """
    if not isinstance(error, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)


def _as_it_is(result: Any) -> Any:
    return result


def _check_sendable(samples: Any) -> None:
    """Raise what sending would: in the queue's own thread it would be printed, and the main process wait for ever."""
    for leaf in tree_leaves(samples):
        if not isinstance(leaf, (Tensor, *_SENDABLE)):
            pickle.dumps(leaf)
        elif isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf:
            raise ValueError(
                "a sample is a tensor with a graph, which can't leave its process: detach() it in the data set"
            )


def _sendable(error: Exception) -> Exception:
    """Return the error itself if it survives the way, else one that says the same."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # whatever an error's own pickling raises
        pass
    said = RuntimeError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", ()):
        said.add_note(note)
    return said
