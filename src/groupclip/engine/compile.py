"""Where ``torch.compile`` must leave off: what keeps samples apart runs as plain Python, also in compiled models."""

from __future__ import annotations

import functools

import torch

from ..autograd import dispatch as private
from ..autograd.tensors import send_uses_to
from .forward import Forward
from .step import PrivateStep


@functools.cache
def keep_uncompiled() -> None:
    """Run calls of an attached model that record gradients as plain Python, compiled or not: samples run side by side in them.

    Evaluation under ``torch.no_grad()`` is compiled as ever. It is told here and not where the functions are defined, because
    asking loads the compiler, which takes a second (so does making any optimizer).
    """
    kept = [(Forward, "record"), (PrivateStep, "before"), (PrivateStep, "after")]
    for owner, name in kept:
        setattr(owner, name, torch.compiler.disable(getattr(owner, name)))
    send_uses_to(private.dispatch, torch.compiler.disable(private.dispatch))
