"""The one stateful object: a model whose gradients come out clipped, and an optimizer whose steps are private.

``attach`` changes nothing that a user sees: the model is not wrapped, no ``state_dict`` key changes, the optimizer is
the user's own. After ``engine.backward(losses)`` every ``p.grad`` is the sum over samples of clipped gradients; the
noise and the division by the expected batch size come once per logical step, in a hook before ``optimizer.step``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import rules as rules  # registers every rule
from ..alone.escaped import refuse_escaped
from ..autograd.beside import settled, use_beside
from ..autograd.gate import Group, Slot
from ..autograd.pass_state import Tape
from ..autograd.tensors import PrivateParameter, PrivateTensor
from ..clipping.budget import GroupNoise
from ..clipping.functions import ClipFunction, LossReduction
from ..errors import CoverageError, GroupClipError, PrivacyViolation
from ..nested import tensors_in
from ..noise.grid import HardenedNoise
from ..noise.sources import KEY_GIVEN, InsecureNoise, NoiseSource, SecureNoise
from ..partition.groups import Partition
from ..privacy.ledger import Ledger
from ..privacy.mechanism import Mechanism
from ..privacy.thresholds import ReadOnly
from .bystanders import Bystanders
from .checks import check_caller, check_coverage, check_loss_scale, check_losses, refuse_batch_statistics
from .compile import keep_uncompiled
from .earlier import Training, earlier_trainings
from .forward import Entrance, Forward, Passed, shapes_of
from .step import PrivateStep

if TYPE_CHECKING:
    from ..statement.record import PrivacyRecord


_log = logging.getLogger("groupclip")

#: What clipping, noise and the statement were made from when the engine was attached.
_FACTS = frozenset({"partition", "clip", "thresholds", "mechanism", "noise", "ledger"})


class Engine:
    """See :func:`groupclip.attach`, which makes it. Facts of the run (partition, clip, thresholds, mechanism, ..) are read-only."""

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
        amounts: GroupNoise, loss_reduction: LossReduction, noise: NoiseSource,
    ) -> None:  # fmt: skip
        self.model, self.optimizer, self.mechanism, self.partition = model, optimizer, mechanism, groups
        self.clip, self.noise, self._amounts = clip, noise, amounts
        # read-only: noise and clipping must not be told different thresholds
        self.thresholds: Mapping[str, float] = ReadOnly(self._amounts.thresholds)
        keep_uncompiled()
        self.ledger = None if mechanism is None else Ledger(mechanism)
        self._unsafe: set[str] = set()
        before = earlier_trainings(p for p in model.parameters() if p.requires_grad)
        # of all steps, those before a resume included
        self._secure, self._hardened = noise.secure, amounts.rounding > 0
        self._foreign = _vouched_for(noise)
        if self.ledger is not None and not noise.secure:
            self.ledger.void(_REPRODUCIBLE)
        self._norms: dict[str, Tensor] = {}
        self._tape = Tape(self.clip, loss_reduction, self._clipped)
        self._groups = self._open_groups({n: p for n, p in model.named_parameters() if p.requires_grad})
        self._slots = [slot for group in self._groups for slot in group.slots]
        self._training = None if self.ledger is None else Training(self._slots, self.ledger, before)
        if self._training is not None and before:
            _log.warning(
                "these weights were trained before, by another engine of this process: engine.epsilon() is of this engine's steps "
                "alone. The statement tells both, and what they amount to together"
            )
        self._step = PrivateStep(
            self._slots, self.ledger, self.noise, self._amounts, self._show_plain, self._show_private
        )
        self._tape.told, self._tape.own_pass = self._step.called, self._step.own_pass
        self._forward = Forward(model, self._tape, self._show_private, noise_to_come=mechanism is not None)
        self._entrance = Entrance(model, self._forward)
        self._handles = self._hook(model, optimizer)
        self._attached = True
        self._show_private()

    def __repr__(self) -> str:
        counted = "clipping alone, NOT private" if self.ledger is None else repr(self.ledger)
        return f"Engine({self.partition.style}, M={len(self.partition.names)}, {self.clip.name}, {counted})"

    def _hook(self, model: nn.Module, optimizer: Optimizer | None) -> list[Any]:
        self._entrance.open()
        handles: list[Any] = [model.register_forward_pre_hook(Passed(self._entrance, self._tape), prepend=True)]
        handles += [handle for slot in self._slots for handle in slot.hook()]
        keepers = [m for m in model.modules() if isinstance(m, (_BatchNorm, _InstanceNorm))]
        handles += [m.register_forward_pre_hook(refuse_batch_statistics) for m in keepers]
        if optimizer is not None:
            if self.mechanism is not None:
                handles.append(register_optimizer_step_pre_hook(Bystanders(self._slots, optimizer)))
            handles.append(optimizer.register_step_pre_hook(_on_plain_tensors(self._step.before)))
            handles.append(optimizer.register_step_post_hook(_on_plain_tensors(self._step.after)))
        return handles

    def _clipped(self, group: str, norms: Tensor) -> None:
        self._norms[group] = norms
        self._step.saw(group, norms)
        self._amounts.saw(group, norms)

    def _open_groups(self, named: Mapping[str, nn.Parameter]) -> list[Group]:
        groups = []
        for name in self.partition.names:
            group = Group(name, self.thresholds[name], self._tape, [])
            group.slots += [
                Slot(n, named[n], group, self.partition.methods.get(n, "auto")) for n in self.partition[name]
            ]
            groups.append(group)
        return groups

    # ------------------------------------------------------------------ training

    def backward(self, losses: Tensor, *, loss_scale: float = 1.0) -> None:
        """Add the clipped gradients of the samples to ``p.grad``: one backward pass.

        Args:
            losses: ``[B]``, one loss per sample of the batch that the model was last called with; sample i's loss must
                depend on sample i alone.
            loss_scale: for float16, in which small gradients vanish: the pass is made on the losses times this number, and it
                is taken out again before norms and clipping. A power of two changes nothing else. It must not depend on the
                data; a sample that it makes overflow adds zero.

        Raises:
            ValueError: not one loss per sample; a loss scale that the losses' dtype can't hold.
            PrivacyViolation, CoverageError, GroupClipError: see the messages. ``p.grad`` is as before where it was
                None; where it held earlier micro-batches, the logical batch must be given up with :meth:`discard`.
        """
        self._require_attached()
        with torch._C.DisableTorchFunctionSubclass():
            check_losses(losses, self._tape.last_batch(), self._tape.shapes)
            check_loss_scale(loss_scale, losses.dtype)
            self._step.check_accumulation()
            held = [slot.param.grad is not None for slot in self._slots]
        counted, seen = self._amounts.counted(), self._step.seen()
        self._norms.clear()
        try:
            with self._tape.permit(len(losses), loss_scale):
                if self._tape.ran_in_parts:
                    refuse_escaped(losses)
                losses = self._settle(losses)
                losses.backward(torch.full_like(losses, loss_scale))
                ended = bool(self._tape.ended)
            if not ended:
                raise CoverageError(
                    "no private parameter took part in these losses: they were computed before attach, by another model, or under "
                    "no_grad"
                )
            with torch._C.DisableTorchFunctionSubclass():
                self._step.check_landed()
            self._step.passed()
        except BaseException as error:
            for slot, had in zip(self._slots, held, strict=True):
                slot.forget_delivery()
                if not had:
                    slot.param.grad = slot.wide = None
            self._amounts.recount(counted)
            self._step.back_to(seen)
            if any(held):
                self._step.broke()
            if isinstance(error, RuntimeError) and "backward through the graph a second time" in str(error):
                raise GroupClipError(
                    "a second backward through one forward pass: its samples were clipped and freed in the first. Sum the losses "
                    "and call engine.backward once, or run the forward pass again"
                ) from error
            raise
        finally:
            for group in self._groups:
                group.drop_gate()

    def _settle(self, losses: Tensor) -> Tensor:
        """Losses with what was used beside the forward pass booked; entry i is sample i's, by the contract."""
        if isinstance(losses, PrivateTensor):
            with torch._C.DisableTorchFunctionSubclass():
                losses = use_beside(self._tape, Tensor.clone, (losses,), {}, [losses])
        return settled(self._tape, losses)

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
            ValueError: tensors of different lengths.
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

    @contextmanager
    def forward_on(self, *inputs: Any) -> Iterator[None]:
        """For forward passes that don't call the model itself but its parts: what is computed inside is of ``inputs``.

        Exact and slow: gradients are told apart by the losses, one backward pass a sample. :meth:`per_sample` is quick.

        Args:
            inputs: tensors, or containers of them; dimension 0 of the first is the sample.
        """
        self._show_private()
        if not torch.is_grad_enabled():
            yield
            return
        check_caller(self.model)
        check_coverage(self.model)
        tensors = [t for t in tensors_in(inputs) if t.dim() > 0]
        if not tensors:
            raise PrivacyViolation(
                "engine.forward_on was given no tensor with a batch dimension: pass the samples, a tensor whose first dimension is "
                "the sample"
            )
        with self._tape.forward_pass():
            self._tape.begin_forward(tensors[0].shape[0], shapes_of(inputs))
            self._tape.tell(inputs)
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
        """Standard deviation of the noise on every coordinate of each group's summed gradient, in the next step."""
        return self._amounts.stds

    def epsilon(self, *, delta: float, sampling_vouched_by_user: bool = False) -> float:
        """Epsilon spent so far at this delta.

        Args:
            sampling_vouched_by_user: batches that groupclip didn't draw were drawn as the plan says; nobody checks it.

        Raises:
            PrivacyViolation: clipping alone, noise that a seed reproduces, or batches of unknown sampling: nothing can be claimed.
        """
        return self._require_ledger().epsilon(delta=delta, sampling_vouched_by_user=sampling_vouched_by_user)

    def record(self, *, delta: float, sampling_vouched_by_user: bool = False) -> PrivacyRecord:
        """Every fact that a reader of the guarantee needs. It claims no epsilon where :meth:`epsilon` raises."""
        from ..statement.record import PrivacyRecord

        ledger = self._require_ledger()
        return PrivacyRecord.of(
            ledger, delta=delta, partition=self.partition, thresholds=self.thresholds, noise_std=self.noise_stds,
            clip=self.clip.name, secure_noise=self._secure, unsafe=sorted(self._unsafe),
            other_releases=self._amounts.other_releases, rounding=self._amounts.rounding if self._hardened else 0.0,
            sampling_vouched_by_user=sampling_vouched_by_user, foreign_noise=self._foreign,
            earlier=() if self._training is None else self._training.before,
        )  # fmt: skip

    def statement(self, *, delta: float, sampling_vouched_by_user: bool = False) -> str:
        """The guarantee in words."""
        return self.record(delta=delta, sampling_vouched_by_user=sampling_vouched_by_user).text()

    def unsafe_look(self, what: str) -> None:
        """Say that somebody looked at, logged or acted upon ``what``, a statistic of the training data without noise.

        The statement, record and model card of the run name it, also after a resume. For statistics that the engine doesn't
        hold: losses or accuracy on the training data. :meth:`unsafe_norms` and :meth:`unsafe_clip_fractions` call it.

        Raises:
            ValueError: an empty name.
        """
        if not what.strip():
            raise ValueError("unsafe_look needs the name of what was looked at, as the statement will tell it")
        self._unsafe.add(" ".join(what.split()))

    def unsafe_clip_fractions(self) -> dict[str, float]:
        """Share of the samples of the last backward pass whose gradient is longer than the group's threshold.

        NOT private, as :meth:`unsafe_norms`. What is private, and paid for, is :class:`groupclip.Adaptive`: it releases noisy
        counts of this and moves the thresholds by them. 0 for an empty batch.
        """
        self.unsafe_look("share of gradients that were clipped")
        return {
            group: float((norms > self.thresholds[group]).double().mean()) if len(norms) else 0.0
            for group, norms in self._last_norms().items()
        }

    def unsafe_norms(self) -> dict[str, Tensor]:
        """Norms ``[B]`` of the per-sample gradients of each group in the last backward pass.

        NOT private: they are functions of single samples, without noise. The statement of the run says that they were
        looked at. A group that took no part has norm zero.
        """
        self.unsafe_look("per-sample gradient norms")
        return self._last_norms()

    def _last_norms(self) -> dict[str, Tensor]:
        batch = max((len(n) for n in self._norms.values()), default=0)
        return {name: self._norms.get(name, torch.zeros(batch)) for name in self.partition.names}

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Ledger, thresholds and partition as plain values, and a name of the training that chance chose.

        Neither key, seed nor statistic of the data is in it.
        """
        return {
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
            "thresholds": dict(self.thresholds),
            "partition": self.partition.to_json(),
            "clip": repr(self.clip),
            "unsafe": sorted(self._unsafe),
            "noise": {"secure": self._secure, "hardened": self._hardened, "foreign": self._foreign},
            "earlier": [] if self._training is None else [e.to_dict() for e in self._training.before],
            "training": self._step.training,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another engine of the same plan left off.

        Raises:
            PrivacyViolation: the state is of another plan, partition, clip function, or other thresholds.
            ValueError: not the state of an engine.
        """
        # states of older versions tell of no earlier training, and have no name
        if not isinstance(state, Mapping) or set(state) | {"earlier", "training"} != set(self.state_dict()):
            found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"not the state of an engine: {found}, and not {sorted(self.state_dict())}; pass what engine.state_dict() returned"
            )
        for name, mine in (
            ("thresholds", state["thresholds"] if self._amounts.moves else dict(self.thresholds)),
            ("partition", self.partition.to_json()),
            ("clip", repr(self.clip)),
        ):
            if state[name] != mine:
                raise PrivacyViolation(
                    f"the saved run had other {name} than this engine: attach with the same settings as the run to be resumed"
                )
        if (state["ledger"] is None) != (self.ledger is None):
            raise PrivacyViolation(
                "the saved run and this engine must both have a mechanism, or neither: attach as it was attached"
            )
        if self._step.under_way:
            raise PrivacyViolation(
                "a logical batch is under way: it was clipped at the thresholds of this engine. Load the state before the first "
                "backward pass, or after optimizer.step(); engine.discard() gives the batch up"
            )
        if self.ledger is not None:
            saved = self.ledger.steps_in(state["ledger"])
            if saved > self.ledger.steps and _vouched_for(self.noise) == KEY_GIVEN:
                raise PrivacyViolation(
                    f"the saved run released {saved} steps, and this engine's noise is under a key that was given: if it is the "
                    "key of that run, its noise comes a second time, and can be subtracted. Attach without noise=, for a fresh key"
                )
            self.ledger.load_state_dict(state["ledger"])
            self._step.resumed(self.ledger.steps, str(state.get("training", "")))
            if self._training is not None:
                self._training.loaded(state.get("earlier", ()))
        self._amounts.load(state["thresholds"])
        for group in self._groups:
            group.threshold = self.thresholds[group.name]
        self._unsafe |= set(state["unsafe"])
        if self.ledger is not None and self.ledger.steps:
            self._secure = self._secure and state["noise"]["secure"] is True
            if not self._secure:
                self.ledger.void(_REPRODUCIBLE)
            self._hardened = self._hardened and state["noise"]["hardened"] is True
            self._foreign = self._foreign or str(state["noise"]["foreign"])

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
        for slot in self._slots:
            slot.param.__class__ = nn.Parameter
            del slot.param._slot  # pyright: ignore[reportAttributeAccessIssue]
            slot.param.grad = None

    def _show_private(self) -> None:
        """Give the parameters the class by which their uses are seen, wherever they lost it."""
        with torch._C.DisableTorchFunctionSubclass():
            for slot in self._slots:
                if type(slot.param) is not PrivateParameter or slot.param._slot is not slot:
                    slot.param.__class__ = PrivateParameter
                    slot.param._slot = slot  # pyright: ignore[reportAttributeAccessIssue]
                slot.keep_hooks()

    def _show_plain(self) -> None:
        """For the step: optimizers take their fused path for plain parameters only."""
        for slot in self._slots:
            slot.param.__class__ = nn.Parameter

    def _require_attached(self) -> None:
        if not self._attached:
            raise GroupClipError("the engine is detached: call groupclip.attach again")

    def _require_ledger(self) -> Ledger:
        if self.ledger is None:
            raise PrivacyViolation(
                "this engine clips without noise (mechanism=None), so it guarantees nothing: attach with a calibrated Mechanism"
            )
        return self.ledger


_REPRODUCIBLE = (
    "the noise of this run comes from a seed and can be subtracted again, so no epsilon can be claimed; attach without noise= for "
    "secure noise (mechanism.epsilon(delta=..) gives the figure of the plan)"
)


def _on_plain_tensors(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, with private parameters as the plain tensors that they are: nothing in it is of a sample."""

    def plainly(*args: Any, **kwargs: Any) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            hook(*args, **kwargs)

    return plainly


def _vouched_for(noise: NoiseSource) -> str:
    """What the statement says of noise that groupclip can't answer for; nothing of its own."""
    if type(noise) not in (SecureNoise, InsecureNoise, HardenedNoise):  # a subclass may add another noise, or none
        return type(noise).__name__
    given = isinstance(noise, (SecureNoise, HardenedNoise)) and noise.key_was_given
    return KEY_GIVEN if given else ""
