"""Passes that can be compared: on chosen samples, with draws held still, and nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..autograd.pass_state import Tape
from ..errors import PrivacyViolation
from .draws import Draws
from .draws_elsewhere import DrawsElsewhere
from .kinds import PICKED, Drawn, Stand, classified
from .passes import Pass, Rehearsal, Script, Trace
from .state import Copies, State, Weights

#: Seed of the model's own generators in the first round: no other's.
_OWN = 7_919

Losses = Callable[..., Tensor]


class ReducedLoss(ValueError):
    """The loss function gave one number for a batch."""


@dataclass
class Replays:
    """The user's model and loss, run again and again.

    Attributes:
        model, loss_fn: the user's.
        total: how many samples are looked at.
        weights: as they were.
        scripts: by round.
        tape: of the engine, while the model is attached.
        own_generators: whether numbers came from generators of numpy or Python that belong to model or loss.
    """

    model: nn.Module
    loss_fn: Losses
    total: int
    weights: Weights = field(init=False)
    scripts: dict[int, Script] = field(default_factory=dict)
    tape: Tape | None = None
    own_generators: bool = False
    _drawn: dict[int, list[Any]] = field(default_factory=dict)
    _copies: Copies = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = Weights(self.model)
        self._devices = sorted({p.device.index for p in self.model.parameters() if p.is_cuda})

    def state(self) -> State:
        """Return what model and loss hold now."""
        return State.of(self.model, self.loss_fn, copies=self._copies)

    def loss(self, arguments: tuple[Any, ...]) -> Tensor:
        return self.loss_fn(self.model, *arguments)

    def loss_of_one(self, arguments: tuple[Any, ...]) -> Tensor:
        """Return ``[1]``: of a batch of one sample.

        Raises:
            PrivacyViolation: the model or the loss can't be computed for one sample.
            ValueError, TypeError: the loss isn't one number per sample.
        """
        try:
            loss = self.loss(arguments)
        except Exception as error:
            raise PrivacyViolation(
                f"the model or the loss can't be computed for a batch of one sample ({type(error).__name__}): either they mix "
                "samples, or the sample isn't dimension 0 of every tensor in the batch (sequence-first tensors must be "
                "transposed)"
            ) from error
        _require_one(loss)
        return loss

    @contextmanager
    def alike(
        self, samples: Sequence[int], round_: int = 0, like: Sequence[Drawn] = (), one: bool = False
    ) -> Iterator[Pass]:
        """Let the sample at place i draw, inside, what ``samples[i]`` always draws in this round; of numpy what the first does, if
        ``one``. After it, model, loss and generators are as they were.
        """
        stand, script = Stand(tuple(samples), self.total, round_), self.scripts.get(round_)
        state = self.state()
        of_one = replace(stand, samples=(0,) * len(stand.samples)) if one else stand
        elsewhere = DrawsElsewhere(script and script.elsewhere, of_one, self.tape)
        state.reseed(_OWN + round_)
        before, own = state.positions, [g for g in state.generators if isinstance(g, torch.Generator)]
        kinds, single = (script.torch, script.single) if script else (None, ())
        draws = Draws(kinds, stand, self._devices, own, self.tape, self._drawn, like, single)
        try:
            with _seed(self._devices), elsewhere.held(), draws, self._tell(draws, elsewhere):
                yield Pass(draws, elsewhere, state)
        finally:
            self.own_generators |= state.positions != before or elsewhere.generators
            state.restore()
            self.weights.restore()

    @contextmanager
    def _tell(self, *draws: Draws | DrawsElsewhere) -> Iterator[None]:
        """Begin the draws of the attached model where it is called inside."""
        if self.tape is None:
            yield
            return
        tape, before = self.tape, self.tape.told

        def told(samples: Tensor) -> None:
            for each in draws:
                each.places.call_begins()
            if before is not None:
                before(samples)

        tape.told = told
        try:
            yield
        finally:
            tape.told = before

    def rehearse(
        self, pairs: Sequence[tuple[Any, ...]], one: tuple[Any, ...], round_: int, every: bool = True
    ) -> Rehearsal:
        """Learn what passes of this round draw.

        Args:
            pairs: batches of two samples.
            one: the first sample alone.
            every: whether to pass all of ``pairs``, also if the first tells enough.
        """
        self.scripts.pop(round_, None)  # of another reading of the batch
        with self.alike((0, 1), round_) as first, torch.no_grad():
            losses, trace = self._loss_of_several(pairs[0], one), self.trace()
            left = self.left_by(first, trace)
        with self.alike((0,), round_, first.draws.made) as single, torch.no_grad():
            self.loss_of_one(one)
        self._learn(round_, single, [first])
        same = not self.scripts[round_].chance and single.draws.guessed == first.draws.guessed == self.scripts[round_].torch
        made, traces = [first], [trace]
        for arguments in () if same and not left and not every else pairs[1:]:
            self.scripts.pop(round_)
            with self.alike((0, 1), round_) as several, torch.no_grad():
                self._loss_of_several(arguments, one)
                traces.append(self.trace())
            made.append(several)
            self._learn(round_, single, made)
        return Rehearsal(traces, float(losses[0]) if same and losses.shape == (2,) else None)

    def _learn(self, round_: int, single: Pass, made: Sequence[Pass]) -> None:
        """Write the script of the round by what a sample alone drew, and batches of two."""
        of_torch = classified(single.draws.made, [p.draws.made for p in made], 2)
        elsewhere = classified(single.elsewhere.made, [p.elsewhere.made for p in made], 2)
        drawn = self.own_generators or any(p.elsewhere.numbers or p.elsewhere.made for p in made)
        chance = drawn or any(kind is not None and kind.is_shared_number for kind in of_torch)
        self.scripts[round_] = Script(of_torch, elsewhere, chance, single.draws.made)

    def left_behind(self, pairs: Sequence[tuple[Any, ...]], round_: int) -> list[Trace]:
        """Return what batches of two samples leave behind, all with the same draws."""
        traces = []
        for arguments in pairs:
            with self.alike((0, 1), round_), torch.no_grad():
                self.loss(arguments)
                traces.append(self.trace())
        return traces

    def _loss_of_several(self, arguments: tuple[Any, ...], one: tuple[Any, ...]) -> Tensor:
        try:
            return self.loss(arguments)
        except Exception:
            self.loss_of_one(one)  # where that fails too, it says more
            raise

    def trace(self) -> Trace:
        """Return what there is now."""
        return Trace(self.state(), self.weights.look())

    def left_by(self, made: Pass, trace: Trace) -> bool:
        """Return whether a pass has changed anything, and be it only another number for what there was."""
        return bool(Trace(made.before, {}).differing(trace))

    @property
    def rounds(self) -> range:
        """Which rounds to make: one, if nothing is done by chance but what many numbers decide (dropout)."""
        return range(len(PICKED) if self.scripts[0].chance or self.scripts[0].ordered else 1)


def _require_one(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn gave {type(loss).__name__}; it must give a tensor [B] of losses, one per sample")
    if loss.dim() == 0:
        raise ReducedLoss
    if tuple(loss.shape) != (1,):
        raise PrivacyViolation(
            f"loss_fn gave losses of shape {tuple(loss.shape)} for a batch of one sample: it must be (1,). If the first "
            "dimension of an input is the sequence, transpose it so that the sample comes first; if each sample has "
            "several losses, reduce them: losses.flatten(1).mean(1), or, of all tokens in a row, losses.view(B, -1).mean(1)"
        )


@contextmanager
def _seed(devices: list[int]) -> Iterator[None]:
    """Everybody's generators at a fixed place, and put back."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def kept_gradients(model: nn.Module) -> Iterator[None]:
    """Put the user's ``p.grad`` aside, and put it back at the end."""
    held = [(p, p.grad) for p in model.parameters()]
    for p, _ in held:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in held:
            p.grad = grad
