"""Where ``torch.compile`` must leave off: what keeps samples apart runs as plain Python, also in compiled models."""

from __future__ import annotations

import functools

import torch

from . import private
from .step import PrivateStep
from .watch import Entrance, Watch


@functools.cache
def keep_uncompiled() -> None:
    """A compiled model is cut in two wherever a private parameter is used; what lies between the cuts stays compiled.

    Traced, groupclip's own code would be compiled line by line: for half a minute, with the same result. It is told here and
    not where the functions are defined, because asking loads the compiler, which takes a second (so does making any optimizer).
    """
    kept = [(private, "dispatch"), (Watch, "before"), (Watch, "after"), (PrivateStep, "before"), (PrivateStep, "after")]
    for owner, name in kept:
        setattr(owner, name, torch.compiler.disable(getattr(owner, name)))
    inwards = torch.compiler.disable(Entrance.__call__, recursive=False)  # what it calls is the model
    setattr(Entrance, "__call__", inwards)  # noqa: B010
