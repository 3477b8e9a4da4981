"""What is published with the weights (parameters, persistent buffers) must not be filled from samples by a forward pass.

Under vmap torch refuses to write a sample's tensor into one that isn't the sample's, and a tensor that a pass puts in a buffer's
place shows itself. Where samples run one at a time, what they leave is compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .errors import PrivacyViolation, UnsupportedOperation
from .outputs import Rows, joined
from .together import NATIVE, Part, functorch


class Published:
    """Of a model, during the runs of one pass.

    Args:
        model: the model.
        guarded: there is noise to come, so what is published is to be private.
    """

    def __init__(self, model: nn.Module, guarded: bool) -> None:
        self._model, self._guarded = model, guarded
        self._buffers = [(m, dict(m._buffers)) for m in model.modules() if m._buffers]
        self._versions = [(t, t._version) for t in _frozen(model)]
        self._values: list[tuple[str, Tensor, Tensor]] | None = None  # name, tensor, copy of what it was
        self._left: list[Tensor] | None = None  # what the first sample left

    # ---------------------------------------------------------------- under vmap

    def refuse_if_held(self, written: Tensor) -> None:
        """A sample's values were about to be written into ``written``.

        Raises:
            PrivacyViolation: it is memory of something that is published.
        """
        if not self._guarded:
            return
        memory = written.untyped_storage().data_ptr()
        for name, tensor in _held(self._model):
            if tensor is written or (memory and not tensor.is_meta and tensor.untyped_storage().data_ptr() == memory):
                self._refuse(name)

    def left_behind(self, part: Part) -> dict[tuple[nn.Module, str], Rows]:
        """The tensors of samples that a run left on modules; buffers get back what they were."""
        found: dict[tuple[nn.Module, str], Rows] = {}
        if part.level == NATIVE:
            return found
        for module in self._model.modules():
            for name, value in module.__dict__.items():
                if isinstance(value, Tensor) and functorch.is_batchedtensor(value):
                    found[module, name] = Rows(part.physical(value))
            for name, value in module._buffers.items():
                if value is not None and functorch.is_batchedtensor(value):
                    if self._guarded and name not in module._non_persistent_buffers_set:
                        self._refuse(_name_of(self._model, module, name))
                    found[module, name] = Rows(part.physical(value))
        return found

    def leave(self, parts: list[tuple[Part, dict[tuple[nn.Module, str], Rows]]]) -> None:
        """Put what the runs left on modules there as a run on the batch would have left it: a buffer has the last sample's."""
        for key in dict.fromkeys(key for _, kept in parts for key in kept):
            module, name = key
            having = [(part, kept[key]) for part, kept in parts if key in kept]
            if name in module._buffers:
                module._buffers[name] = having[-1][1].physical[-1].detach()
            elif len(having) < len(parts):
                setattr(module, name, None)  # some of the samples alone left it
            else:
                setattr(module, name, _as_batch(having))

    # ---------------------------------------------------------------- several runs

    def put_back_for_another_run(self) -> None:
        """Before another run of the same pass: buffers are as they were.

        Raises:
            UnsupportedOperation: the run before moved a weight or a buffer in place, which would move again.
        """
        for module, buffers in self._buffers:
            module._buffers.update(buffers)
        for tensor, version in self._versions:
            if tensor._version != version:
                name = next(n for n, t in _held(self._model) if t is tensor)
                raise UnsupportedOperation(
                    f"the forward pass changes {name!r}, and samples of this batch take different paths through the model, so it would "
                    "be changed more than once. Change it outside of forward(), after optimizer.step()"
                )

    def watch_closely(self) -> None:
        """From here on samples run one at a time, outside of vmap: nothing shows what they write but a comparison."""
        if self._guarded:
            self._values = [(name, t, t.detach().clone()) for name, t in _held(self._model)]

    def put_back(self) -> None:
        """Before the next sample: everything is as before the first."""
        for module, buffers in self._buffers:
            module._buffers.update(buffers)
        for _, tensor, value in self._values or []:
            with torch.no_grad():
                if not _equal(tensor.detach(), value):
                    tensor.data.copy_(value)

    def compare(self) -> None:
        """After a sample: it must have left what the others left.

        Raises:
            PrivacyViolation: it didn't; the model is as before the pass.
        """
        if self._values is None:
            return
        now = dict(_held(self._model))
        left = [now[name].detach().clone() for name, _, _ in self._values]
        changed = any(not _equal(x, value) for x, (_, _, value) in zip(left, self._values, strict=True))
        if self._left is None:
            self._left = left if changed else [value for _, _, value in self._values]
            return
        for x, y, (name, _, _) in zip(left, self._left, self._values, strict=True):
            if not _equal(x, y):
                self.put_back()
                self._refuse(name)

    def finish(self, runs: int) -> None:
        """After the last sample.

        Raises:
            PrivacyViolation: there was one only, and it left something: nothing shows that others would leave the same.
        """
        if self._values is None or self._left is None or runs > 1:
            return
        for x, (name, _, value) in zip(self._left, self._values, strict=True):
            if not _equal(x, value):
                self.put_back()
                self._refuse(name)

    def _refuse(self, name: str) -> None:
        for module, buffers in self._buffers:
            module._buffers.update(buffers)
        kind = "buffer" if name in dict(self._model.named_buffers(remove_duplicate=False)) else "weight"
        raise PrivacyViolation(
            f"the forward pass fills the {kind} {name!r} with values that depend on the samples: state_dict() would publish "
            "them without noise. Register it as a buffer with persistent=False if the model does without it, or fill it from "
            "public data and put its module in eval mode"
        )


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and bool(torch.equal(x.nan_to_num(), y.nan_to_num()) and torch.equal(x.isnan(), y.isnan()))


def _as_batch(having: list[tuple[Part, Rows]]) -> Tensor:
    """``[B, ..]``, or as it is for a sample where it doesn't begin with the sample."""
    if all(rows.physical.dim() == 1 or rows.physical.shape[1] == 1 for _, rows in having):
        return joined(having)
    return joined([(part, Rows(rows.physical.unsqueeze(1))) for part, rows in having])


def _held(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and persistent buffers."""
    found: list[tuple[str, Tensor]] = list(model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
    return found


def _name_of(model: nn.Module, module: nn.Module, name: str) -> str:
    prefix = next(prefix for prefix, other in model.named_modules() if other is module)
    return f"{prefix}.{name}" if prefix else name


def _frozen(model: nn.Module) -> Any:
    """What a pass may move in place: all but what the optimizer does."""
    yield from (p for p in model.parameters() if not p.requires_grad and not p.is_inference())
    yield from (b for b in model.buffers() if not b.is_inference())
