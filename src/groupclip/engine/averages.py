"""Averages of the weights after every step. Every step's weights are released anyhow, so an average of them costs no privacy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import whole
from ..autograd.tensors import PrivateParameter

KINDS = "ema:DECAY, tail:SHARE or last:K"


@dataclass(frozen=True)
class Averaging:
    """Says which average: ``ema`` with its decay, ``tail`` with the share of the steps, ``last`` with their number."""

    kind: str
    amount: float

    @classmethod
    def named(cls, how: str) -> Averaging:
        """Read ``ema:0.999``, ``tail:0.25`` or ``last:50``. Raises ValueError for anything else."""
        kind, _, text = how.partition(":") if isinstance(how, str) else ("", "", "")
        try:
            amount = int(text) if kind == "last" else float(text)
        except ValueError:
            amount = -1.0
        fits = {"ema": 0 < amount < 1, "tail": 0 < amount <= 1, "last": 1 <= amount <= 2**53}.get(kind, False)
        if not fits:
            raise ValueError(
                f"{how!r} is no average of weights: give {KINDS}, with a decay in (0, 1), a share in (0, 1], or a number of steps"
            )
        return cls(kind, amount)

    def begins(self, steps: int | None) -> int:
        """Return the first step that counts, from 1. Raises ValueError where the plan's steps are needed and aren't given."""
        if self.kind == "ema":
            return 1
        if steps is None:
            raise ValueError(f"an average of the kind {self.kind} is over the end of a run: give steps=, the planned number")
        last = int(self.amount) if self.kind == "last" else max(1, round(self.amount * steps))
        return max(1, steps - last + 1)

    def told(self, averaged: int) -> str:
        """Say in words which weights these are, after so many steps were averaged."""
        if not averaged:
            return "those after the last step"
        if self.kind == "ema":
            return f"an exponential moving average of the weights after every step (decay {self.amount:g})"
        return f"the mean of the weights after each of the last {averaged:,} steps"


class WeightAverage:
    """Keeps an average of a model's trainable parameters, in float32 or wider, beside the model, which it leaves alone.

    Args:
        model: attached or not.
        how: ``ema:DECAY``, an exponential moving average, whose decay is less in the first steps: (1 + t) / (10 + t);
            ``tail:SHARE``, the mean over that share of the planned steps, the last ones; ``last:K``, over the last K.
        steps: how many are planned; for ``tail`` and ``last``.

    Raises:
        ValueError: another average, or steps that are needed and missing.
    """

    def __init__(self, model: nn.Module, how: str, *, steps: int | None = None) -> None:
        self.averaging = Averaging.named(how)
        self._begins = self.averaging.begins(None if steps is None else whole("steps", steps, least=1))
        self._model = model
        self.updates = self.averaged = 0
        self._means = {
            name: value.to(torch.promote_types(value.dtype, torch.float32), copy=True)
            for name, value in self._now().items()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights as they are now into the average. Call it after every ``optimizer.step()``."""
        self.updates += 1
        now = list(self._now().values())
        means = list(self._means.values())
        if self.updates < self._begins:
            torch._foreach_copy_(means, now)  # pyright: ignore[reportPrivateImportUsage]
            return
        self.averaged += 1
        share = 1 / self.averaged
        if self.averaging.kind == "ema":
            share = 1 - min(self.averaging.amount, (1 + self.updates) / (10 + self.updates))
        for mean, value in zip(means, now, strict=True):
            mean.lerp_(value.to(mean.dtype), share)

    def weights(self) -> dict[str, Tensor]:
        """Return the average by parameter name, as the model's parameters are: copies."""
        return {name: self._means[name].to(value.dtype, copy=True) for name, value in self._now().items()}

    @torch.no_grad()
    def model(self) -> nn.Module:
        """Return a plain copy of the model that holds the average: to evaluate it, and to publish it."""
        again = copy.deepcopy(self._model)
        for param in again.parameters():
            if isinstance(param, PrivateParameter):  # of an attached model: without an engine it could be used for nothing
                vars(param).pop("_slot", None)
                param.__class__ = nn.Parameter  # pyright: ignore[reportAttributeAccessIssue]
        named = dict(again.named_parameters())
        for name, value in self.weights().items():
            named[name].copy_(value)
        return again

    @property
    def told(self) -> str:
        """Which weights these are, in words."""
        return self.averaging.told(self.averaged)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on needs: numbers and tensors."""
        return {"updates": self.updates, "averaged": self.averaged, "means": dict(self._means)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one left off.

        Raises:
            ValueError: the state is of a model with other trainable parameters; nothing is changed then.
        """
        means = state["means"]
        if {n: m.shape for n, m in means.items()} != {n: m.shape for n, m in self._means.items()}:
            raise ValueError("the saved average is of a model with other trainable parameters than this one")
        self.updates, self.averaged = whole("updates", state["updates"], least=0), whole("averaged", state["averaged"], least=0)
        for name, mean in self._means.items():
            mean.copy_(means[name])

    def _now(self) -> dict[str, Tensor]:
        with torch._C.DisableTorchFunctionSubclass():
            return {name: p.detach().as_subclass(Tensor) for name, p in self._model.named_parameters() if p.requires_grad}
