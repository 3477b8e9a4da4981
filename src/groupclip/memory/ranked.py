"""What each of several processes holds and sends for one model: the formulas of :mod:`groupclip.memory.several`, from the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..partition.blocks import find_blocks
from .passes import optimizer_bytes
from .several import PerRank, Unit, under_ddp, under_fully_shard
from .sizes import show_bytes

WRAPPERS = ("DistributedDataParallel", "fully_shard")


@dataclass(frozen=True)
class OnRanks:
    """Holds what a step costs each of several processes.

    Attributes:
        ranks, microbatches: processes, and micro-batches that each of them has in a step.
        parts: wrapper -> bytes that a process keeps between passes, and hands to collectives in a step.
        peaks: wrapper -> bytes that a process holds at most, by a bound: what it keeps, and all that a pass of one process holds
            beside its parameters. Under ``DistributedDataParallel`` also that wrapper's buckets; under ``fully_shard`` also two
            units that are put together.
    """

    ranks: int
    microbatches: int
    parts: Mapping[str, PerRank]
    peaks: Mapping[str, int]

    def table(self) -> str:
        """Write one row a wrapper."""
        rows = [(f"on {self.ranks} processes", "between passes", "peak, at most", "sent a step")]
        for name, part in self.parts.items():
            kept, peak, sent = (show_bytes(size) for size in (part.between_passes, self.peaks[name], part.handed_over))
            rows.append((name, kept, peak, sent))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join((f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))))
            for row in rows
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "ranks": self.ranks,
            "microbatches": self.microbatches,
            **{
                name: {
                    "weights_bytes": part.weights,
                    "gradients_bytes": part.gradients,
                    "optimizer_bytes": part.state,
                    "between_passes_bytes": part.between_passes,
                    "peak_bytes_at_most": self.peaks[name],
                    "sent_bytes_a_step": part.handed_over,
                }
                for name, part in self.parts.items()
            },
        }


def parts_over_ranks(
    model: nn.Module, ranks: int, *, optimizer: Optimizer | None = None, microbatches: int = 1
) -> dict[str, PerRank]:
    """Return what a process keeps and hands over under each of :data:`WRAPPERS`.

    Args:
        model: not attached, and not wrapped. ``fully_shard`` is meant to cut each repeated block, and then the whole.
        ranks: n >= 2.
        optimizer: its state counts, of numbers as many as a parameter's.
        microbatches: of a step, on each process.

    Raises:
        ValueError: fewer than 2 processes, or parameters of several dtypes.
    """
    for name, value, least in (("ranks", ranks, 2), ("microbatches", microbatches, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number, {least} or more")
    params = dict(model.named_parameters())
    dtypes = sorted({str(p.dtype) for p in params.values()})
    if len(dtypes) != 1:
        raise ValueError(f"the parameters have dtypes {', '.join(dtypes)}: bytes of several processes are known for one of them")
    itemsize = next(iter(params.values())).itemsize
    trainable = [p.numel() for p in params.values() if p.requires_grad]
    moments = optimizer_bytes(model, optimizer)[0] // (sum(trainable) * itemsize)  # without what is one number a parameter
    frozen = sum(p.numel() for p in params.values() if not p.requires_grad)
    return {
        WRAPPERS[0]: under_ddp(trainable, frozen=frozen, itemsize=itemsize, moments=moments),
        WRAPPERS[1]: under_fully_shard(
            units_of(model), ranks, microbatches=microbatches, itemsize=itemsize, moments=moments
        ),
    }


def units_of(model: nn.Module) -> list[Unit]:
    """Return what ``fully_shard`` puts together at once, where it is called for each repeated block and then for the model."""
    blocks = find_blocks(model)
    inside: dict[str, list[nn.Parameter]] = {block: [] for block in blocks}
    rest: list[nn.Parameter] = []
    for name, param in model.named_parameters():
        holders = [block for block in blocks if name.startswith(f"{block}.")]
        (inside[holders[0]] if holders else rest).append(param)
    return [_unit(rest, again=False), *(_unit(params, again=True) for params in inside.values())]


def _unit(params: Iterable[nn.Parameter], *, again: bool) -> Unit:
    of = {trains: [tuple(p.shape) for p in params if p.requires_grad is trains] for trains in (True, False)}
    return Unit(of[True], again=again, frozen=of[False])


def on_ranks(
    model: nn.Module, ranks: int, microbatches: int, optimizer: Optimizer | None, *, static: int, predicted_peak: int
) -> OnRanks:
    """Return what :func:`parts_over_ranks` says, with peaks. ``static``, ``predicted_peak``: of the plan on one process."""
    parts = parts_over_ranks(model, ranks, optimizer=optimizer, microbatches=microbatches)
    beside = predicted_peak - static
    buffers = sum(b.numel() * b.itemsize for b in model.buffers())
    whole, cut = (parts[name] for name in WRAPPERS)
    return OnRanks(
        ranks,
        microbatches,
        parts,
        {
            WRAPPERS[0]: whole.between_passes + buffers + beside + whole.gradients,
            WRAPPERS[1]: cut.between_passes + buffers + beside + 2 * cut.largest,
        },
    )
