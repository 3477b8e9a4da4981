"""Learning where samples lie, from one pass over a single sample.

With as many positions as samples, ``[B, T, d]`` and ``[T, B, d]`` look alike. A pass over one sample tells them apart
for every use of every parameter (``[1, T, d]`` or ``[T, 1, d]``), so the engine makes one before the first.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from .batch import replaced, tensors_in
from .tape import Tape

_log = logging.getLogger("groupclip")


def learn_layout(model: nn.Module, tape: Tape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run ``model`` on the first sample of its inputs, and forget the result.

    Random number generators and buffers are left as they were. A model that can't run on one sample is no error: uses
    whose layout stays unknown are then computed the slow way when shapes can't tell.
    """
    tensors = [t for t in tensors_in((args, kwargs)) if t.dim() > 0]
    if not tensors or tensors[0].shape[0] < 2:
        return
    batch = tensors[0].shape[0]

    def first(value: Any) -> Any:
        return (
            value[:1].detach() if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == batch else value
        )

    one_args, one_kwargs = replaced((args, dict(kwargs)), first)
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    devices = {t.device for t in tensors if t.device.type == "cuda"}
    with torch.random.fork_rng([d.index for d in devices]):
        tape.begin_forward((one_args, one_kwargs))
        try:
            model.forward(*one_args, **one_kwargs)
        except Exception as error:  # whatever the model may raise: the real pass that follows will raise it too
            _log.debug("the model can't run on one sample: %s", error)
        finally:
            tape.end_forward()
            tape.inputs.forget()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers and not torch.equal(buffer, buffers[name]):
                buffer.copy_(buffers[name])
