"""What a plan is: groups and norm methods, what the peak will be, and what the least needs where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..partition.groups import Partition
from .passes import Curve
from .ranked import OnRanks
from .sizes import show_bytes


@dataclass(frozen=True, eq=False)
class Plan:
    """Holds what :func:`plan` found.

    Attributes:
        partition: the groups; it remembers the norm methods, and ``attach`` uses them.
        methods: layer name -> norm method, where there is a choice.
        samples: B of the physical batch that it was made for.
        static: bytes of parameters, buffers and, if an optimizer was given, its state after a step; and of noise that is kept.
        predicted_peak: static plus the most that a step holds beside it: batch, activations, what is booked, gradients.
        predicted_plain: the same for training without privacy.
        group_peaks: of each group, by the cost model: static plus the most while it is booked and clipped.
        seconds: of norms and clipped sums, by the cost model of time.
        memory: the budget, if one was given.
        curve, plain_curve: live bytes over the pass, without ``static``.
        on_ranks: what each of several processes keeps and sends, if that was asked for.
    """

    partition: Partition
    methods: Mapping[str, str]
    samples: int
    static: int
    predicted_peak: int
    predicted_plain: int
    group_peaks: Mapping[str, int]
    seconds: float
    memory: int | None
    curve: Curve
    plain_curve: Curve
    on_ranks: OnRanks | None = None

    def table(self) -> str:
        """Write for people one row a group, with the cost model's estimate of its peak, then the totals of the sketched step."""
        rows = [("group", "layers from", "to", "coordinates", "estimate")]
        for name, members in self.partition.groups:
            size = f"{self.partition.sizes[name]:,}"
            rows.append((name, _layer(members[0]), _layer(members[-1]), size, show_bytes(self.group_peaks[name])))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join((*(f"{c:<{w}}" for c, w in zip(r[:3], widths[:3], strict=True)),
                       *(f"{c:>{w}}" for c, w in zip(r[3:], widths[3:], strict=True))))
            for r in rows
        ]  # fmt: skip
        counts: dict[str, int] = {}
        for method in self.methods.values():
            counts[method] = counts.get(method, 0) + 1
        chosen = ", ".join(f"{method} for {count} layers" for method, count in sorted(counts.items()))
        lines += [
            "",
            f"physical batch    {self.samples} samples",
            f"norm methods      {chosen or 'no layer has a choice'}",
            f"static            {show_bytes(self.static)}",
            f"predicted peak    {show_bytes(self.predicted_peak)}"
            + ("" if self.memory is None else f" of {show_bytes(self.memory)}"),
            f"without privacy   {show_bytes(self.predicted_plain)}",
            *([] if self.on_ranks is None else ["", self.on_ranks.table()]),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; curves left out."""
        return {
            "samples": self.samples,
            "static_bytes": self.static,
            "predicted_peak_bytes": self.predicted_peak,
            "predicted_plain_bytes": self.predicted_plain,
            "memory_bytes": self.memory,
            "seconds_of_norms_and_sums": self.seconds,
            "groups": [
                {"name": name, "numbers": self.partition.sizes[name], "parameters": list(members),
                 "peak_bytes": self.group_peaks[name]}
                for name, members in self.partition.groups
            ],
            "methods": dict(self.methods),
            **({} if self.on_ranks is None else {"on_ranks": self.on_ranks.to_dict()}),
        }  # fmt: skip


class BudgetTooSmallError(ValueError):
    """No grouping fits in the memory that was given. ``least`` is the plan that needs the least."""

    def __init__(self, message: str, least: Plan) -> None:
        super().__init__(message)
        self.least = least


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter
