"""One backward pass of the losses of single samples: what it adds to ``p.grad``, or leaves as it was where it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..alone.escaped import refuse_escaped
from ..autograd.beside import settled, use_beside
from ..autograd.gate import Group
from ..autograd.pass_state import Tape
from ..autograd.sharded import ShardedSlot, Turns, turns_of
from ..autograd.slot import Slot
from ..autograd.tensors import PrivateTensor
from ..clipping.budget import GroupNoise
from ..distributed.shards import Shard
from ..errors import CoverageError, GroupClipError
from ..partition.groups import Partition
from .step import PrivateStep


def open_groups(
    model: nn.Module, partition: Partition, thresholds: Mapping[str, float], tape: Tape, whole: Mapping[int, nn.Parameter]
) -> list[Group]:
    """Make the groups of a partition, each with its parameters. ``whole``: see :func:`groupclip.distributed.shards.unsharded`."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = []
    for name in partition.names:
        group = Group(name, thresholds[name], tape, [])
        for n in partition[name]:
            param, method = named[n], partition.methods.get(n, "auto")
            if id(param) in whole:
                group.slots.append(ShardedSlot(n, whole[id(param)], group, method, kept=Shard(param)))
            else:
                group.slots.append(Slot(n, param, group, method))
        groups.append(group)
    return groups


@dataclass(frozen=True, eq=False)
class BackwardPass:
    """The backward passes of one engine.

    Attributes:
        norms: of the last pass, by group; cleared when a pass begins.
        turns: sums over ranks what is cut over them; None where nothing is.
    """

    tape: Tape
    step: PrivateStep
    amounts: GroupNoise
    groups: Sequence[Group]
    slots: Sequence[Slot]
    norms: dict[str, Tensor]
    turns: Turns | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", turns_of(self.groups))

    def run(self, losses: Tensor, loss_scale: float) -> None:
        """See :meth:`groupclip.Engine.backward`; the losses were checked."""

        def backward() -> None:
            ready = self.ready(losses)
            ready.backward(torch.full_like(ready, loss_scale))
            if self.turns is not None:
                self.turns.finish()

        self.within(len(losses), loss_scale, backward)

    def ready(self, losses: Tensor) -> Tensor:
        """Return losses ``[B]`` whose backward pass may begin: nothing of them is of other samples than it should be."""
        if self.tape.ran_in_parts:
            refuse_escaped(losses)
        return self._settle(losses)

    def within(self, batch: int, loss_scale: float, backward: Callable[[], None]) -> None:
        """Make a backward pass that clips: of the sum of ``batch`` losses, one a sample, times ``loss_scale``."""
        with torch._C.DisableTorchFunctionSubclass():
            held = [slot.kept.grad is not None for slot in self.slots]
        counted, seen = self.amounts.counted(), self.step.samples.seen()
        self.norms.clear()
        try:
            with self.tape.permit(batch, loss_scale):
                backward()
                ended = bool(self.tape.ended)
            if not ended:
                raise CoverageError(
                    "no private parameter took part in these losses: they were computed before attach, by another model, or under "
                    "no_grad"
                )
            with torch._C.DisableTorchFunctionSubclass():
                self.step.check_landed()
            self.step.samples.passed()
        except BaseException as error:
            if self.turns is not None:
                self.turns.forget()
            for slot, had in zip(self.slots, held, strict=True):
                slot.forget_delivery()
                if not had:
                    slot.kept.grad = slot.wide = None
            self.amounts.recount(counted)
            self.step.samples.back_to(seen)
            if any(held):
                self.step.broke()
            if isinstance(error, RuntimeError) and "backward through the graph a second time" in str(error):
                raise GroupClipError(
                    "a second backward through one forward pass: its samples were clipped and freed in the first. Sum the losses "
                    "and call engine.backward once, or run the forward pass again"
                ) from error
            raise
        finally:
            for group in self.groups:
                group.drop_gate()

    def _settle(self, losses: Tensor) -> Tensor:
        """Return losses with what was used beside the forward pass booked; entry i is sample i's, by the contract."""
        if isinstance(losses, PrivateTensor):
            with torch._C.DisableTorchFunctionSubclass():
                losses = use_beside(self.tape, Tensor.clone, (losses,), {}, [losses])
        return settled(self.tape, losses)
