"""Random draws of torch held still: a sample draws the same numbers in every batch and at every place.

Plain torch draws the numbers of a batch from one stream, so a sample meets other numbers alone than in a batch, and the two
can't be compared. Here each draw of a pass is recognised (the first, the second, ..) and made sample by sample, each from a
stream of its own. Which dimension of a draw holds the samples is learnt from the shapes that it has for one sample and for
several; what has the same shape for both is shared by the samples of a batch, or drawn by a loop over them: then it is the same
in every pass, and whenever it is drawn.

Numbers of which each sample has one lie in falling order: a model that sorts them does move its samples. A random permutation
moves every sample too. A draw that fits neither (for ragged rows) is a constant. In other rounds other numbers are drawn, and
single numbers are low, or high: whatever is done with some probability is done in one of them.

In the attached model each sample runs as a batch of one, and draws as it does alone (:mod:`groupclip.validate.beside`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..autograd.pass_state import Tape
from ..autograd.vmap import NATIVE
from .beside import asked, drawn_apart, layout
from .kinds import CANDIDATES, PICKED, SHARED, Drawn, Kind, Stand, guess, quantile, share_of, stream
from .places import Places, state_of_torch

_aten = torch.ops.aten


class Draws(TorchDispatchMode):
    """Holds the draws of one pass still, or records them.

    Args:
        kinds: of the draws, in order; None to record them in ``made``.
        single: the draws of a sample alone.
        drawn: numbers that might have been drawn, by seed: kept from pass to pass.
        like: what a pass on several samples has drawn, to tell from it what one sample shares with others.
        stand: of the samples.
        devices: CUDA devices in use.
        own: generators that belong to the model or the loss; draws from others aren't touched.
        tape: of the engine, where the model is attached.
    """

    def __init__(
        self, kinds: Sequence[Kind | None] | None, stand: Stand, devices: list[int], own: Collection[torch.Generator],
        tape: Tape | None, drawn: dict[int, list[Any]], like: Sequence[Drawn] = (), single: Sequence[Drawn] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self._drawn, self._like, self._single = drawn, like, single
        self._kinds, self._stand, self._devices, self._own = kinds, stand, devices, own
        self.places = Places(tape, stand.samples)
        self.made: list[Drawn] = []
        self.guessed: list[Kind | None] = []  # of each that is recorded, what it was held as
        self.half = False  # whether anything was computed in half precision (autocast, say)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_draw(func, args, kwargs):
            own = {**kwargs, "generator": None} if "generator" in kwargs else kwargs
            result = self._record(func, args, own) if self._kinds is None else self._hold(func, args, own)
        else:
            result = func(*args, **kwargs)
        self.half = self.half or (isinstance(result, Tensor) and result.dtype in (torch.bfloat16, torch.float16))
        return result

    def _is_draw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if torch.Tag.nondeterministic_seeded not in func.tags or self.places.is_trying:
            return False
        if "scaled_dot_product" in func._opname and not any(isinstance(a, float) and a > 0 for a in args[3:]):
            return False  # attention without dropout
        generator = kwargs.get("generator")
        # Torch hands on another object of the same generator.
        return generator is None or any(torch.equal(generator.get_state(), own.get_state()) for own in self._own)

    def _place(self, func: Any, args: Sequence[Any]) -> tuple[int, int]:
        """Return how many draws of the pass came before, and which of the samples makes it, where they do in turn."""
        here = self.places.here(state_of_torch())
        part = self.places.part
        one = self._single[here[0]] if here[0] < len(self._single) else None
        in_turn = part is not None and one is not None and (one.what, one.asked) == (_name(func), asked(args))
        torch.rand(())
        self.places.passed(here, part.size if in_turn and part is not None and part.level != NATIVE else 1)
        self.places.note()
        return here

    def _hold(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        here, part, samples = self._place(func, args), self.places.part, self.places.samples
        if part is None or part.level == NATIVE or part.size == 0:
            return self._still(here[0], samples, func, args, kwargs)
        place, turn = here
        one = self._single[place] if place < len(self._single) else None
        if one is not None and (one.what, one.asked) == (_name(func), asked(args)):
            return self._still(place, samples[turn : turn + 1], func, args, kwargs)
        where = layout(one, args, part.size)
        if where is None:
            return _constant(func, args, kwargs)
        return drawn_apart(
            where, args, part.size, lambda i, own: self._still(place, samples[i : i + 1], func, own, kwargs)
        )

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        place, _ = self._place(func, args)
        kind = guess(_name(func), args, len(self._stand.samples))
        result = None if kind is None else self._by_sample(place, self._stand.samples, kind, func, args, kwargs)
        self.guessed.append(None if result is None else kind)
        result = func(*args, **kwargs) if result is None else result
        drawn = Drawn(_name(func), _plain(args), tuple(_first(result).shape), asked(args))
        self.made.append(drawn)
        like = drawn if len(self._stand.samples) > 1 else next(iter(self._like[place : place + 1]), None)
        if like is not None and like.what == drawn.what and math.prod(like.shape) == 1 == math.prod(drawn.shape):
            return self._number(func, args, kwargs)  # as it will be, for much may hang on it
        return result

    def _still(
        self, place: int, samples: Sequence[int], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the draw of these samples, as they make it in a plain batch."""
        if func.overloadpacket is _aten.randperm:
            return func(*args, **kwargs).sort().values.roll(1)
        assert self._kinds is not None
        kind = self._kinds[place] if place < len(self._kinds) else None
        if kind is None or kind.single.what != _name(func) or kind.axis is None:
            return self._of_all(func, args, kwargs)
        result = self._by_sample(place, samples, kind, func, args, kwargs)
        return _constant(func, args, kwargs) if result is None else result

    def _by_sample(
        self, place: int, samples: Sequence[int], kind: Kind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the draw, each sample's from a stream of its own; None if it isn't made so: an order of samples that multinomial
        draws, say.
        """
        assert kind.axis is not None
        calls = self._calls(kind, args, len(samples))
        if calls is None:
            return None
        try:
            parts = [
                self._of_sample(place, sample, kind, func, call, kwargs)
                for sample, call in zip(samples, calls, strict=True)
            ]
        except RuntimeError:
            return None
        if args and isinstance(args[0], Tensor) and _shares(_first(parts[0]), args[0]):
            return args[0]  # in place
        return _join(parts, kind.axis)

    def _calls(self, kind: Kind, args: Sequence[Any], number: int) -> Sequence[Sequence[Any]] | None:
        """Return the arguments for each sample; None where the samples can't be told apart."""
        axis = kind.axis
        if kind.single.args is not None:
            return [kind.single.args] * number
        assert axis is not None
        share = kind.single.shape[axis]

        def own(value: Any) -> bool:
            return isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] == number * share

        if not any(map(own, args)):
            return None
        return [[a.narrow(axis, i * share, share) if own(a) else a for a in args] for i in range(number)]

    def _of_sample(
        self, place: int, sample: int, kind: Kind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if math.prod(kind.single.shape) != 1:
            return self._from(stream(self._stand.round, place, sample), func, args, kwargs)
        seeds = [stream(self._stand.round, place, i) for i in range(CANDIDATES)]
        share = share_of(sample, self._stand.total, self._stand.round)
        result = func(*args, **kwargs)
        _first(result).fill_(quantile(self._candidates(seeds, func, args, kwargs), share))
        return result

    def _of_all(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the samples share, or draw in turn; a constant if one sample alone draws no such thing."""
        result = func(*args, **kwargs)
        shape = tuple(_first(result).shape)
        if not any(
            (k.single.what, k.single.shape) == (_name(func), shape) for k in self._kinds or () if k and k.axis is None
        ):
            return _constant(func, args, kwargs)
        if math.prod(shape) == 1:
            return self._number(func, args, kwargs)
        return self._from(self._stream_of_all(func, args), func, args, kwargs)

    def _stream_of_all(self, func: Any, args: Sequence[Any], number: int = SHARED) -> int:
        return stream(self._stand.round, zlib.crc32(repr((_name(func), _plain(args))).encode()), number)

    def _number(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return one number for all samples, that lies as the round says among those that might have been drawn."""
        seeds = [self._stream_of_all(func, args, i) for i in range(CANDIDATES)]
        chosen = quantile(self._candidates(seeds, func, args, kwargs), PICKED[self._stand.round])
        result = func(*args, **kwargs)
        _first(result).fill_(chosen)
        return result

    def _candidates(self, seeds: list[int], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return numbers that might have been drawn here, in rising order."""
        if _plain(args) is not None and seeds[0] in self._drawn:
            return self._drawn[seeds[0]]
        numbers = sorted(_first(self._from(s, func, args, kwargs)).item() for s in seeds)
        return self._drawn.setdefault(seeds[0], numbers) if _plain(args) is not None else numbers

    def _from(self, seed: int, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        # Not torch.manual_seed, which is slow where other kinds of devices may be there.
        used = [torch.default_generator, *(torch.cuda.default_generators[d] for d in self._devices)]
        states = [generator.get_state() for generator in used]
        try:
            for generator in used:
                generator.manual_seed(seed)
            return func(*args, **kwargs)
        finally:
            for generator, state in zip(used, states, strict=True):
                generator.set_state(state)


def _name(func: Any) -> str:
    """Name an operation as its in-place form is named, because vmap makes ``bernoulli`` of ``bernoulli_``."""
    return func._opname.strip("_")


def _plain(args: Sequence[Any]) -> tuple[Any, ...] | None:
    return None if any(isinstance(a, Tensor) for a in args) else tuple(args)


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _shares(x: Tensor, y: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _join(parts: Sequence[Any], axis: int) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts), axis)
    return tuple(
        torch.cat(list(p), axis) if isinstance(p[0], Tensor) and p[0].dim() > axis else p[0]
        for p in zip(*parts, strict=True)
    )


def _constant(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a draw whose samples can't be told apart: dropout keeps everything, other numbers are all alike."""
    if func.overloadpacket is _aten.native_dropout:
        return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
    result = func(*args, **kwargs)
    for tensor in [result] if isinstance(result, Tensor) else []:
        lowest = 1 if tensor.is_floating_point() else 0
        tensor.fill_(_CONSTANTS[func.overloadpacket](args) if func.overloadpacket in _CONSTANTS else lowest)
    return result


def _given(args: Sequence[Any], place: int, default: float) -> Any:
    return args[place] if len(args) > place else default


_UNIFORM = 0.47  # not one half: `rand < 0.5` keeps
_CONSTANTS: dict[Any, Callable[[Sequence[Any]], float]] = {
    _aten.uniform_: lambda args: _given(args, 1, 0.0) + _UNIFORM * (_given(args, 2, 1.0) - _given(args, 1, 0.0)),
    _aten.normal_: lambda args: _given(args, 1, 0.0) + _given(args, 2, 1.0) / 2,
    _aten.rand: lambda args: _UNIFORM,
    _aten.rand_like: lambda args: _UNIFORM,
    _aten.randint: lambda args: 0 if len(args) < 3 else args[0],
    _aten.randint_like: lambda args: 0 if len(args) < 3 else args[1],
    _aten.random_: lambda args: args[1] if len(args) > 2 else 0,
    _aten.randn: lambda args: 0.5,
    _aten.randn_like: lambda args: 0.5,
}
