"""What a model under vmap may do that vmap can't: read values, and run operations whose results have no common shape.

A value that is read on the host (``if mask.all()``, ``.item()``) is answered where all samples agree. Where they don't, they
take different paths, and :class:`Differ` says which samples go together; :mod:`groupclip.alone.run` runs them so. Operations
without a batching rule are run sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..nested import PLAIN_TYPES, has_numbers, instances_in, tensors_in
from .at_once import AT_ONCE
from .chance import ANY, DRAWS, MARK, REPEATS, SIZES, UNUSUAL, Chance, decides, is_marked
from .facts import FACTS
from .one_by_one import agreed, key_of, one_by_one
from .stops import Differ, NeedsOwn, Position, Stop, position
from .tensors import PRIVATE_TYPES, PrivateParameter
from .vmap import NestedLevel, Part, hooks_on_saved, natively
from .wrong_rules import WRONG

Run = Callable[..., Any]


class Reads(TorchFunctionMode):
    """Answers reads while a model runs on ``part``.

    Args:
        part: samples that run together.
        own: where the model makes constants that it writes samples into: each gets its own. None: that isn't followed.
        dispatch: runs an operation on private parameters.
        seen: called at every operation under hooks on what autograd saves.
        check: called with every operation, if given.
        memory: called with every parameter whose memory the model's code asks for, if given.
    """

    def __init__(
        self, part: Part, own: set[Position] | None, dispatch: Run, seen: Callable[[], None], check: Run | None = None,
        memory: Callable[[Tensor], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.part, self.own, self.dispatch, self.seen, self.check, self.memory = part, own, dispatch, seen, check, memory
        self._stopped: Stop | None = None
        self._failed = False  # an operation did, and a sample alone might not have
        self._chance = Chance() if part.level and part.size > 1 else None
        self._made: dict[int, Position] = {}  # memory -> where it was made

    def run_on(self, function: Run, args: Any, kwargs: Any) -> Any:
        """Call the model's code, inside. It can catch a stop, or an error that a sample alone may not see: that counts for nothing.

        Raises:
            Stop: it goes on by ``except``.
        """
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self.part.copies.tell_apart()
            self._raise_stop()
            raise
        self._raise_stop()
        if self.part.copies.tell_apart() or self._failed:
            raise Differ(list(range(self.part.size)), outside=True)
        return result

    def _raise_stop(self) -> None:
        stop, self._stopped = self._stopped, None
        try:
            if stop is not None:
                raise stop from None
        finally:
            del stop  # or its traceback, which holds the run's tensors, would live in a circle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, chance, marked = kwargs or {}, self._chance, False
        try:
            if chance is not None and chance.drawn:
                for value in args:  # written out, for it is asked of every operation
                    kind = type(value)
                    if kind is Tensor:
                        marked = marked or MARK in value.__dict__
                    elif kind not in PLAIN_TYPES and kind not in PRIVATE_TYPES:
                        marked = marked or is_marked(value)
                marked = marked or (bool(kwargs) and is_marked(kwargs))
                if marked and func in _DECIDES and decides(func, args, kwargs, _READS):
                    raise Differ(list(range(self.part.size)), outside=True, by_chance=True)
            before = None
            if chance is not None and func in DRAWS:
                with torch._C._DisableTorchDispatch():  # who measures the pass isn't told of this tensor, which is gone at once
                    before = torch.default_generator.get_state().numpy().tobytes()
            if hooks_on_saved(True) is not None:
                self.seen()
            if self.check is not None:
                self.check(func, args, kwargs)
            for kind in types:
                if kind in PRIVATE_TYPES:
                    if self.memory is not None and func in _MEMORY and type(args[0]) is PrivateParameter:
                        self.memory(args[0])
                    result = self.dispatch(func, args, kwargs)
                    break
            else:
                result = run(self.part, func, args, kwargs) if self.own is None else self._following(func, args, kwargs)
            if chance is not None and (marked or before is not None):
                kind, name = type(result), func.__name__
                if before is None and kind is Tensor and func not in UNUSUAL and (name[-1] != "_" or name[-2] == "_"):
                    setattr(result, MARK, ANY)
                elif before is not None or name == "__setitem__" or (kind not in PLAIN_TYPES and kind is not torch.Size):
                    chance.after(func, args, kwargs, result, before, marked=marked)
            return result
        except Stop as stop:
            self._stopped = self._stopped or stop
            raise
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._failed = True
            raise

    def _following(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, and note where constants are made that samples may be written into."""
        assert self.own is not None
        try:
            result = run(self.part, func, args, kwargs)
        except NeedsOwn as needs:
            needs.made_at = self._made.get(_memory(needs.written))
            raise
        if (
            isinstance(result, Tensor)
            and self.part.on_top
            and not self.part.holds(result)
            and func.__name__ != "__get__"
        ):
            memory, place = _memory(result), position()
            # A view, or the tensor itself that was changed in place, isn't made here: a copy wouldn't be what is written to.
            if memory and memory not in {
                _memory(t) for t in tensors_in((args, kwargs)) if not self.part.holds(t)
            }:
                if place in self.own:
                    with natively():
                        return self.part.logical(self.part.each(result).clone())
                self._made[memory] = place
        return result


def _memory(x: Tensor) -> int:
    return 0 if x.is_meta else x.untyped_storage().data_ptr()


def run(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation without private operands on samples that run together."""
    if part.level:
        special = SPECIAL.get(func)
        if special is not None and (special is _picked or any(map(part.holds, instances_in((args, kwargs), Tensor)))):
            try:
                return special(part, func, args, kwargs)
            except NestedLevel:
                pass
    try:
        return func(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not part.level or isinstance(error, NestedLevel):
            raise
        return one_by_one(part, func, args, kwargs, error)


# ------------------------------------------------------------------ reads


def _read_number(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    with natively():
        physical = part.physical(args[0])
        if physical.is_meta or physical.numel() != part.size or not part.size:
            return func(
                physical if not part.size else physical[0], *args[1:], **kwargs
            )  # the error that it is, if it is one
        here = physical.reshape(-1).cpu()
        if has_numbers(here):
            keys = [key_of(number) for number in here.tolist()]
            found: dict[Hashable, Any] = {}
            for row, key in enumerate(keys):
                if key not in found:  # of each number once
                    found[key] = func(here[row])
            values = [found[key] for key in keys]
        else:
            values = [func(x) for x in here.unbind()]
    return agreed([key_of(v) for v in values], values)


def _read_all(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    with natively():
        physical = part.physical(args[0])
        values = [func(x, *args[1:], **kwargs) for x in physical]
    return agreed([key_of(v) for v in values], values)


def _picked(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    """Watch ``x[n]``: a number that is the sample's own picks a view of a sample alone, and a copy here."""
    index, number = args[1], False
    for one in index if type(index) is tuple else (index,):
        if isinstance(one, Tensor):
            if one.dim() or one.dtype in (torch.bool, torch.uint8):
                raise NestedLevel  # a copy for a sample alone, too
            number = number or part.holds(one)
    if not number:
        raise NestedLevel
    result = func(*args, **kwargs)
    part.copies.watch((args[0],), (result,))
    return result


#: operation -> what is done in its stead when a sample's tensor takes part.
SPECIAL: dict[Any, Run] = {
    **dict.fromkeys(
        (Tensor.__bool__, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__complex__, Tensor.is_nonzero,
         torch.is_nonzero), _read_number),
    **dict.fromkeys((Tensor.tolist, Tensor.__repr__), _read_all),
    Tensor.__getitem__: _picked,
    **FACTS, **WRONG, **AT_ONCE,
}  # fmt: skip

#: They give a value to the host.
_READS = frozenset(func for func, way in SPECIAL.items() if way in (_read_number, _read_all))
_DECIDES = _READS | SIZES | REPEATS | {Tensor.__getitem__}
_MEMORY = frozenset((Tensor.data.__get__, Tensor.data.__set__))  # pyright: ignore[reportAttributeAccessIssue]
