"""The inputs of the model: which of them hold samples, and what a part of the samples gets of them.

The first tensor's dimension 0 is the batch, of B samples. Others that are as long hold samples too (masks, labels), or are so
long by chance (positions, a support set). Which, is found out by their lengths in batches of different sizes, or else, once,
by running the model without gradients on a few samples beside all rows of that input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..autograd.vmap import NATIVE, Part
from ..errors import PrivacyViolation, UnsupportedOperation
from ..nested import has_numbers, instances_in, replaced, tensors_in
from .sequences import Multiples, Sequences
from .where import Place, describe, placed_tensors

#: Runs the model without gradients on other inputs; raises what the model raises.
Probe = Callable[[tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Inputs:
    """Holds the inputs of one call, and which of them hold samples.

    Attributes:
        args, kwargs: as the user gave them.
        samples: ids of the tensors whose dimension 0 is the sample.
        batch: B.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    samples: frozenset[int]
    batch: int

    def of(self, part: Part) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what each sample of the part gets: a batch of one. To be called natively."""

        def change(value: Any) -> Any:
            if id(value) not in self.samples:
                return value
            rows = value
            if not part.batch:  # nobody's numbers stand in, and no gradient is made of them
                rows = value.new_zeros((1, *value.shape[1:]))
            elif part.rows is not None:
                rows = value[part.rows]
            return rows if part.level == NATIVE else part.logical(rows.unsqueeze(1))

        return replaced((self.args, self.kwargs), change)

    def rows(self, index: Sequence[int], whole: int | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the inputs of some samples only; all rows of the tensor with the id ``whole``."""

        def change(value: Any) -> Any:
            if id(value) not in self.samples or id(value) == whole:
                return value
            # of an empty batch, nobody's numbers
            return value.detach()[list(index)] if self.batch else value.new_zeros((len(index), *value.shape[1:]))

        return replaced((self.args, self.kwargs), change)


    def shared(self) -> list[Any]:
        """Return the tensors and arrays that all samples get."""
        held = instances_in((self.args, self.kwargs), (Tensor, np.ndarray))
        return [one for one in held if id(one) not in self.samples]


class Unchanged:
    """Sees whether the model's code changes its inputs in place, after which it can't run on them again."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        tensors = tensors_in((inputs.args, inputs.kwargs))
        self._versions = {id(t): t._version for t in tensors if not t.is_inference()}

    def require(self) -> None:
        """Check that they are as they were.

        Raises:
            UnsupportedOperation: one was changed.
        """
        for place, tensor in placed_tensors(self._inputs.args, self._inputs.kwargs):
            if id(tensor) in self._versions and tensor._version != self._versions[id(tensor)]:
                raise UnsupportedOperation(
                    f"the forward pass changes the input {describe(place)} in place, and it must run again (samples of this batch "
                    "take different paths, or can't run at once): the input would be changed twice. Write it out of place "
                    "(x = x * 2 in the place of x *= 2), or begin with x = x.clone()"
                )


def fresh(value: Any) -> Any:
    """Return nested inputs with copies of their tensors and arrays: what tries a model out leaves nothing in them."""

    def change(one: Any) -> Any:
        if isinstance(one, Tensor):
            return one.detach().clone()
        return one.copy() if isinstance(one, np.ndarray) else one

    return replaced(value, change)


class Roles:
    """Remembers which inputs of a model hold samples, by their place.

    Args:
        guarded: there is noise to come: what may be of the samples isn't given to all of them.
    """

    def __init__(self, *, guarded: bool = False) -> None:
        self.tries = True  # or what is as long as the batch holds samples
        self._guarded = guarded
        self._followed: defaultdict[Place, set[int]] = defaultdict(set)  # batch sizes that its length was
        self._lengths: defaultdict[Place, set[int]] = defaultdict(set)  # its lengths that weren't the batch's
        self._samples: set[Place] = set()
        self._constant: set[Place] = set()
        self._multiples = Multiples()
        self._sequences = Sequences(guarded=guarded)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any], probe: Probe) -> Inputs:
        """Return which of the inputs hold samples.

        Raises:
            PrivacyViolation: none has a batch dimension; or it can't be told whether one holds samples.
            UnsupportedOperation: a list, a tuple, an array or an object has an entry for each sample.
        """
        tensors = [(place, t) for place, t in placed_tensors(args, kwargs) if t.dim() > 0]
        if not tensors:
            raise PrivacyViolation(
                "the model was called without any tensor that has a batch dimension, so samples can't be told apart; "
                "pass the batch as a tensor whose first dimension is the sample"
            )
        batch = tensors[0][1].shape[0]
        long = {id(t) for _, t in tensors if t.shape[0] == batch}
        constant: set[int] = set()
        doubtful: list[tuple[Place, Tensor]] = []
        for place, tensor in tensors[1:]:
            length = tensor.shape[0]
            self._multiples.check(place, length, batch)
            if length != batch:
                if length > 1:
                    self._lengths[place].add(length)
                    if not self.tries and place in self._samples:
                        raise PrivacyViolation(
                            _NO_LONGER.format(place=describe(place), length=length, batch=batch)
                        )
                continue
            if length > 1:
                self._followed[place].add(length)
            follows = len(self._followed[place]) > 1 or place in self._samples
            if place in self._constant:
                constant.add(id(tensor))
            elif length > 1 and (self._lengths[place] or not follows):
                doubtful.append((place, tensor))
        inputs = Inputs(args, kwargs, frozenset(long - constant), batch)
        for place, tensor in doubtful:
            if _is_constant(inputs, tensor, probe) if self.tries else batch in self._lengths[place]:
                if self._guarded and not self._lengths[place]:
                    raise PrivacyViolation(_FOR_ALL.format(place=describe(place), batch=batch))
                self._constant.add(place)
                constant.add(id(tensor))
                inputs = Inputs(args, kwargs, frozenset(long - constant), batch)
            else:
                self._samples.add(place)
        whole = (lambda few: _is_whole(inputs, few, probe)) if self.tries else None
        self._sequences.check(args, kwargs, batch, whole)
        return inputs


def _is_whole(inputs: Inputs, few: Sequence[int], probe: Probe) -> bool:
    """Return whether the outputs for a few samples are their rows of the outputs for all; what isn't cut stays as it is."""
    whole, _ = _try_out(probe, inputs.args, inputs.kwargs)
    found, _ = _try_out(probe, *inputs.rows(few))
    return whole is not None and found is not None and _agree(whole, found, few, inputs.batch)


def _is_constant(inputs: Inputs, tensor: Tensor, probe: Probe) -> bool:
    """Return whether the model takes all rows of ``tensor`` for every sample: told by running it on a few samples."""
    few = (0, 1, 0) if inputs.batch == 2 else (0, 1)
    beside, error = _try_out(probe, *inputs.rows(few, whole=id(tensor)))
    if beside is None:
        return False
    cut, cut_error = _try_out(probe, *inputs.rows(few))
    if cut is None:
        # Neither runs: what is wrong shows in the pass itself.
        return error is None and cut_error is not None
    whole, _ = _try_out(probe, inputs.args, inputs.kwargs)
    if whole is None:
        return False
    # Where both agree the values don't depend on it; a sample that sees its own row only is in no danger.
    return [_agree(whole, found, few, inputs.batch) for found in (cut, beside)] == [False, True]


def _try_out(probe: Probe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor] | None, Exception | None]:
    try:
        return [t for t in tensors_in(probe(args, kwargs)) if t.is_floating_point()], None
    except Exception as error:
        return None, error


def _agree(whole: list[Tensor], found: list[Tensor], few: Sequence[int], batch: int) -> bool:
    """Return whether the outputs for a few samples are those samples' rows of the outputs for all."""
    if len(whole) != len(found):
        return False
    compared = 0
    for x, y in zip(whole, found, strict=True):
        if x.dim() == 0 or x.shape[0] != batch:
            continue
        if y.shape != (len(few), *x.shape[1:]):
            return False
        compared += 1
        if not has_numbers(x):  # a pass without numbers goes by the shapes alone
            continue
        rows = x[list(few)]
        tolerance = torch.finfo(x.dtype).eps ** 0.5
        if not torch.allclose(
            rows, y, rtol=tolerance, atol=tolerance * float(x.abs().nan_to_num().max()), equal_nan=True
        ):
            return False
    return compared > 0


_NO_LONGER = (
    "the input {place} was as long as the batch before, so its rows were taken for samples, and now it has {length} rows for "
    "{batch} samples. On one process it is tried out what it holds; where a model is cut over ranks it can't be. Give the model "
    "what is the same for all samples as a buffer, or as a tensor [1, ..]"
)

_FOR_ALL = (
    "the input {place} has as many rows as the batch ({batch}), and what the model returns for one sample depends on all of them. "
    "If they are of the samples (texts beside images, say), each sample would act on the gradients of all: make the model see a "
    "sample's own row alone. If they are the same for all samples (candidates, a support set), give them to the model as a buffer, "
    "or as a tensor [1, {batch}, ..]"
)
