"""The one stateful object: a model whose gradients come out clipped, and an optimizer whose steps are private.

``attach`` changes nothing that a user sees: the model is not wrapped, no ``state_dict`` key changes, the optimizer is
the user's own. After ``engine.backward(losses)`` every ``p.grad`` is the sum over samples of clipped gradients; the
noise and the division by the expected batch size come once per logical step, in a hook before ``optimizer.step``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import rules as rules  # registers every rule
from ..autograd.pass_state import Tape
from ..clipping.budget import GroupNoise
from ..clipping.functions import ClipFunction, LossReduction
from ..errors import GroupClipError, PrivacyViolation
from ..noise.sources import NoiseSource
from ..partition.groups import Partition
from ..privacy.ledger import Ledger
from ..privacy.mechanism import Mechanism
from ..privacy.thresholds import ReadOnly
from ..statement.drawn import DrawnBudget
from ..statement.record import PrivacyRecord
from .backward import BackwardPass, open_groups
from .checks import check_loss_scale, check_losses
from .compile import keep_uncompiled
from .earlier import Training, earlier_trainings
from .forward import Entrance, Forward, Passed
from .hooks import hooks_on_model, hooks_on_optimizer, restore, show_plain, show_private
from .looks import Looks
from .provenance import REPRODUCIBLE, Provenance
from .shared import Shared
from .state import State
from .step import PrivateStep
from .views import Views

#: What clipping, noise and the statement were made from when the engine was attached.
_FACTS = frozenset({"partition", "clip", "thresholds", "mechanism", "noise", "ledger", "views"})


class Engine:
    """Clips and counts for one model; :func:`groupclip.attach` makes it. Its facts (partition, clip, ..) are read-only."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FACTS and name in self.__dict__:
            raise AttributeError(
                f"engine.{name} can't be changed: the gates and the noise were made from it, so the statement would tell of a "
                "run that isn't this one. Detach the engine and attach again: what was spent stays spent, and the next statement "
                "tells it"
            )
        super().__setattr__(name, value)

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | None, groups: Partition, mechanism: Mechanism | None, clip: ClipFunction,
        amounts: GroupNoise, loss_reduction: LossReduction, noise: NoiseSource, views: Views, shared: Shared | None = None,
    ) -> None:  # fmt: skip
        self.model, self.optimizer, self.mechanism, self.partition = model, optimizer, mechanism, groups
        stages = None if shared is None else shared.stages
        self._everywhere = groups if stages is None else stages.everywhere  # the groups of all stages of a pipeline
        self.clip, self.noise, self._amounts, self.views = clip, noise, amounts, views.count
        self.thresholds: Mapping[str, float] = ReadOnly(self._amounts.thresholds)  # clipping and noise must agree on them
        keep_uncompiled()
        self.ledger = None if mechanism is None else Ledger(mechanism)
        self._looks = Looks(groups.names, self.thresholds)
        before = earlier_trainings(model.parameters())  # frozen ones too: they are released with the rest
        if self.ledger is not None and not noise.secure:
            self.ledger.void(REPRODUCIBLE)
        self._tape = Tape(self.clip, loss_reduction, self._clipped)
        self._groups = open_groups(model, groups, self.thresholds, self._tape, {} if shared is None else shared.whole)
        self._slots = [slot for group in self._groups for slot in group.slots]
        self._training = None if self.ledger is None else Training(self._slots, self.ledger, before)
        show = partial(show_private, self._slots)
        self._step = PrivateStep(
            self._slots, self.ledger, self.noise, self._amounts, partial(show_plain, self._slots), show
        )
        self._tape.told, self._tape.own_pass = self._step.samples.called, self._step.own_pass
        self._forward = Forward(model, self._tape, show, noise_to_come=mechanism is not None, views=views)
        self._pass = BackwardPass(self._tape, self._step, self._amounts, self._groups, self._slots, self._looks.norms)
        self._state = State(
            self._everywhere, clip, self.ledger, noise, amounts, self._groups, self._step, self._looks, self._training,
            Provenance.of(noise, hardened=amounts.rounding > 0), self.views,
        )  # fmt: skip
        self._entrance = Entrance(model, self._forward)
        self._entrance.open()
        self._handles = [model.register_forward_pre_hook(Passed(self._entrance, self._tape), prepend=True)]
        self._handles += hooks_on_model(model, self._slots) + ([] if shared is None else shared.begin(self._forward, self._pass))
        self._passes = None if shared is None else shared.passes
        if optimizer is not None:
            self._handles += hooks_on_optimizer(optimizer, self._slots, self._step, private=mechanism is not None)
        self._attached = True
        show()

    def __repr__(self) -> str:
        counted = self.ledger or "clipping alone, NOT private"
        return f"Engine({self.partition.style}, M={len(self.partition.names)}, {self.clip.name}, {counted})"

    def _clipped(self, group: str, norms: Tensor) -> None:
        self._looks.norms[group] = norms
        self._step.samples.saw(group, norms)
        self._amounts.saw(group, norms)

    # ------------------------------------------------------------------ training

    def backward(self, losses: Tensor, *, loss_scale: float = 1.0) -> None:
        """Add the clipped gradients of the samples to ``p.grad``: one backward pass.

        Args:
            losses: ``[B]``, one loss per sample of the batch that the model was last called with; sample i's loss must
                depend on sample i alone. With K views a sample also ``[B, K]``, whose mean over the views is taken.
            loss_scale: for float16, in which small gradients vanish: the pass is made on the losses times this number, and it
                is taken out again before norms and clipping. A power of two changes nothing else. It must not depend on the
                data; a sample that it makes overflow adds zero.

        Raises:
            ValueError: not one loss per sample; a loss scale that the losses' dtype can't hold.
            PrivacyViolation, CoverageError, GroupClipError: see the messages. ``p.grad`` is as before where it was
                None; where it held earlier micro-batches, the logical batch must be given up with :meth:`discard`.
        """
        self._require_attached()
        if self.views > 1:
            losses = self._forward.by_sample(losses)
        with torch._C.DisableTorchFunctionSubclass():
            check_losses(losses, self._tape.last_batch(), self._tape.shapes)
            check_loss_scale(loss_scale, losses.dtype)
            self._step.check_accumulation()
        self._pass.run(losses, loss_scale)

    def per_sample(self, function: Callable[..., Any], *samples: Any) -> Any:
        """Run ``function`` on every sample alone, all of them at once where that can be: for losses of your own making.

        Args:
            function: is written for a batch, and given batches of one sample. It may call the model, parts of it, and anything
                else; a loss that it reduces to one number comes out as one loss for each sample. No sample is in sight of another,
                whatever it does with its arguments; what it closes over is seen by all samples, and must be of none.
            samples: tensors ``[B, ..]``, or containers of them: dimension 0 is the sample in all of them.

        Returns:
            What ``function`` returns, with the samples in dimension 0: ``[B]`` of numbers, ``[B, ..]`` of tensors ``[1, ..]``.

        Raises:
            ValueError: tensors of different lengths. GroupClipError: under ``torch.no_grad()``.
            UnsupportedOperation: results of single samples that can't be put together.
        """
        self._require_attached()
        if not torch.is_grad_enabled():
            raise GroupClipError(
                "engine.per_sample records gradients, and this is under torch.no_grad(): call the function itself"
            )
        return self._forward.per_sample(function, samples)

    def discard(self) -> None:
        """Give up the logical batch under way: clear every ``p.grad`` and forget what was backpropagated."""
        self._step.discard()
        if self._passes is not None:
            self._passes.forget()
        for group in self._groups:
            group.drop_gate()

    @contextmanager
    def forward_on(self, *inputs: Any) -> Iterator[None]:
        """Credit to ``inputs`` what is computed inside, in a forward pass that calls parts of the model instead of the model.

        Exact and slow: gradients are told apart by the losses, one backward pass a sample. :meth:`per_sample` is quick.

        Args:
            inputs: tensors, or containers of them; dimension 0 of the first is the sample.
        """
        with self._forward.on(inputs):
            yield

    # ------------------------------------------------------------------ privacy

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on every coordinate of the summed gradient: ``sigma ||(R_1..R_M)||``.

        Raises:
            ValueError: it isn't the same in every group; see :attr:`noise_stds`.
        """
        stds = set(self.noise_stds.values())
        if len(stds) > 1:
            raise ValueError("the groups have different noise: ask for engine.noise_stds, which gives it by group")
        return stds.pop()

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviation of the noise on every coordinate of each group's sum, in the next step; before it is correlated."""
        return self._amounts.stds

    def epsilon(self, *, delta: float, sampling_vouched_by_user: bool = False) -> float:
        """Return the epsilon spent so far at this delta.

        Args:
            sampling_vouched_by_user: batches that groupclip didn't draw were drawn as the plan says; nobody checks it.

        Raises:
            PrivacyViolation: clipping alone, noise that a seed reproduces, or batches of unknown sampling: nothing can be claimed.
        """
        return self._require_ledger().epsilon(delta=delta, sampling_vouched_by_user=sampling_vouched_by_user)

    def record(self, *, delta: float, sampling_vouched_by_user: bool = False) -> PrivacyRecord:
        """Return every fact that a reader needs; arguments as of :meth:`epsilon`. It claims no epsilon where that raises."""
        ledger, noise = self._require_ledger(), self._state.provenance
        return PrivacyRecord.of(
            ledger, delta=delta, partition=self._everywhere, thresholds=self.thresholds, noise_std=self.noise_stds,
            clip=self.clip.name, secure_noise=noise.secure, unsafe=sorted(self._looks.taken),
            other_releases=self._amounts.other_releases, rounding=self._amounts.rounding if noise.hardened else 0.0,
            sampling_vouched_by_user=sampling_vouched_by_user, foreign_noise=noise.foreign,
            earlier=() if self._training is None else self._training.before, views=self.views,
            budget=DrawnBudget.of(ledger.budget),
        )  # fmt: skip

    def statement(self, *, delta: float, sampling_vouched_by_user: bool = False) -> str:
        """Tell the guarantee in words; arguments as of :meth:`epsilon`."""
        return self.record(delta=delta, sampling_vouched_by_user=sampling_vouched_by_user).text()

    def unsafe_look(self, what: str) -> None:
        """Say that somebody looked at, logged or acted upon ``what``, a statistic of the training data without noise.

        The statement, record and model card of the run name it, also after a resume. For statistics that the engine doesn't
        hold: losses or accuracy on the training data. :meth:`unsafe_norms` and :meth:`unsafe_clip_fractions` call it.

        Raises:
            ValueError: an empty name.
        """
        self._looks.take(what)

    def unsafe_clip_fractions(self) -> dict[str, float]:
        """Return the share of the samples of the last backward pass whose gradient is longer than the group's threshold.

        NOT private, as :meth:`unsafe_norms`. What is private, and paid for, is :class:`groupclip.Adaptive`: it releases noisy
        counts of this and moves the thresholds by them. 0 for an empty batch.
        """
        return self._looks.at_clip_fractions()

    def unsafe_norms(self) -> dict[str, Tensor]:
        """Return the norms ``[B]`` of each group's per-sample gradients in the last backward pass.

        NOT private: they are functions of single samples, without noise. The statement of the run says that they were
        looked at. A group that took no part has norm zero.
        """
        return self._looks.at_norms()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Ledger, thresholds and partition as plain values, and a name of the training that chance chose.

        Neither key, seed nor statistic of the data is in it.
        """
        return self._state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another engine of the same plan left off.

        Raises:
            PrivacyViolation: the state is of another plan, partition, clip function, or other thresholds.
            ValueError: not the state of an engine.
        """
        self._state.load(state)

    def detach(self) -> None:
        """Make the model and the optimizer what they were: plain parameters, no hooks. Gradients are cleared.

        What was spent stays spent: the statement of an engine that is attached to these weights later, or to copies of them, tells
        it, in this process. Gradients that were clipped but not yet stepped have no noise, so they don't outlive the engine.
        """
        if not self._attached:
            return
        self._attached = False
        self._step.leave()
        if self._training is not None:
            self._training.end()
        self._entrance.close()
        for handle in self._handles:
            handle.remove()
        for group in self._groups:
            group.drop_gate()
        restore(self._slots)
        if self.ledger is not None:
            self.ledger.close()  # last: a full disk must not leave hooks

    def _require_attached(self) -> None:
        if not self._attached:
            raise GroupClipError("the engine is detached: call groupclip.attach again")

    def _require_ledger(self) -> Ledger:
        if self.ledger is None:
            raise PrivacyViolation(
                "this engine clips without noise (mechanism=None), so it guarantees nothing: attach with a calibrated Mechanism"
            )
        return self.ledger
