"""Every trainable parameter in exactly one named group."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import CoverageError

if TYPE_CHECKING:
    from torch import nn

METHODS = ("auto", "gram", "instantiated")
FORMAT = "groupclip-partition-1"


@dataclass(frozen=True, repr=False)
class Partition:
    """Holds named groups of parameter names; :func:`partition` makes it.

    Guarantee: at least one group, no group is empty, no parameter is in two, and :func:`partition` puts the
    groups in the order in which the model registers their first parameters. Partitions are equal if their
    style, groups, sizes and methods are; equal ones have equal hashes and equal JSON.

    Attributes:
        style: what it was made from: ``"uniform:4"``, ``"mapping"``, ``"function"`` ...
        groups: (group name, names of its parameters), in order.
        numbers: how many coordinates (scalars) each group holds, in the same order.
        norm_methods: (parameter name, ``"auto"``, ``"gram"`` or ``"instantiated"``) where a plan chose one.

    Raises ``ValueError`` if the facts contradict each other.
    """

    style: str
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    numbers: tuple[int, ...]
    norm_methods: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a partition needs at least one group")
        seen: dict[str, str] = {}
        for group, members in self.groups:
            if not group:
                raise ValueError(f"the group of {', '.join(members)} has an empty name; name it")
            if not members:
                raise ValueError(f"group {group!r} is empty: every group needs a trainable parameter")
            for name in members:
                if name in seen:
                    raise ValueError(
                        f"parameter {name!r} is in two groups, {seen[name]!r} and {group!r}: keep it in one, for it is clipped once"
                    )
                seen[name] = group
        if len(set(self.names)) < len(self.groups):
            raise ValueError(f"two groups have one name: {', '.join(self.names)}")
        if len(self.numbers) != len(self.groups):
            raise ValueError(f"{len(self.numbers)} sizes for {len(self.groups)} groups")
        for name, method in self.norm_methods:
            if name not in seen:
                raise ValueError(f"method {method!r} is given for {name!r}, which is in no group")
            if method not in METHODS:
                raise ValueError(f"method {method!r} of {name!r} is unknown; methods: {', '.join(METHODS)}")
        if len(self.methods) < len(self.norm_methods):
            raise ValueError("norm_methods names a parameter twice")

    @property
    def names(self) -> tuple[str, ...]:
        """Group names; a sequence of thresholds is read in this order."""
        return tuple(group for group, _ in self.groups)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Group name -> number of scalars in it."""
        return MappingProxyType(dict(zip(self.names, self.numbers, strict=True)))

    @property
    def methods(self) -> Mapping[str, str]:
        """Parameter name -> norm method; a parameter that is absent is ``"auto"``."""
        return MappingProxyType(dict(self.norm_methods))

    @cached_property
    def _group_of(self) -> dict[str, str]:
        return {name: group for group, members in self.groups for name in members}

    @cached_property
    def _members(self) -> dict[str, tuple[str, ...]]:
        return dict(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, group: object) -> bool:
        return group in self._members

    def __getitem__(self, group: str) -> tuple[str, ...]:
        if group not in self._members:
            raise KeyError(f"no group {group!r}; groups: {', '.join(self.names)}")
        return self._members[group]

    def group_of(self, parameter: str) -> str:
        """Return the group of a parameter, by the name that ``model.named_parameters()`` gives it. KeyError if it is in none."""
        if parameter not in self._group_of:
            raise KeyError(f"parameter {parameter!r} is in no group of this partition")
        return self._group_of[parameter]

    def with_methods(self, methods: Mapping[str, str]) -> Partition:
        """Return the same groups with norm methods chosen per parameter (replaces those chosen before)."""
        order = {name: i for i, name in enumerate(self._group_of)}
        chosen = sorted(methods.items(), key=lambda item: order.get(item[0], len(order)))
        return dataclasses.replace(self, norm_methods=tuple(chosen))

    def __repr__(self) -> str:
        return (
            f"<Partition {self.style!r}: {len(self)} groups, {len(self._group_of)} parameters, "
            f"{sum(self.numbers):,} coordinates>"
        )

    def __str__(self) -> str:
        threshold = f"{1 / math.sqrt(len(self)):.4g}"
        rows = [("group", "parameters", "coordinates", "threshold")]
        rows += [
            (group, _abridge(members), f"{numbers:,}", threshold)
            for (group, members), numbers in zip(self.groups, self.numbers, strict=True)
        ]
        rows.append(("total", str(len(self._group_of)), f"{sum(self.numbers):,}", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
            for a, b, c, d in rows
        ]
        note = f"style {self.style}, M = {len(self)}; threshold R/sqrt(M) at R = 1, the default of attach"
        return "\n".join([*lines, note])

    def to_json(self) -> str:
        """Return JSON text; :meth:`from_json` gives an equal partition back."""
        import json  # here: ``import groupclip`` needs none of it

        groups = [
            {"name": group, "numbers": numbers, "parameters": list(members)}
            for (group, members), numbers in zip(self.groups, self.numbers, strict=True)
        ]
        facts = {"format": FORMAT, "style": self.style, "groups": groups, "methods": dict(self.norm_methods)}
        return json.dumps(facts, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Partition:
        """Return the partition that :meth:`to_json` wrote. ``ValueError`` says what is wrong with any other text."""
        import json

        try:
            facts = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a partition: the text isn't JSON ({error})") from error
        _require(isinstance(facts, dict) and facts.get("format") == FORMAT, f"'format' must be {FORMAT!r}")
        _require(set(facts) == {"format", "style", "groups", "methods"}, f"unexpected keys {sorted(facts)}")
        _require(isinstance(facts["style"], str), "'style' must be a string")
        _require(isinstance(facts["groups"], list), "'groups' must be a list")
        for group in facts["groups"]:
            _require(
                isinstance(group, dict)
                and set(group) == {"name", "numbers", "parameters"}
                and isinstance(group["name"], str)
                and type(group["numbers"]) is int
                and group["numbers"] >= 0
                and _are_strings(group["parameters"]),
                f"a group has 'name' (text), 'numbers' (whole), 'parameters' (list of text), not {group!r}",
            )
        methods = facts["methods"]
        known = isinstance(methods, dict) and _are_strings(list(methods.values()))
        _require(known, "'methods' must map text to text")
        return cls(
            style=facts["style"],
            groups=tuple((g["name"], tuple(g["parameters"])) for g in facts["groups"]),
            numbers=tuple(g["numbers"] for g in facts["groups"]),
            norm_methods=tuple(methods.items()),
        )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(f"not a partition: {problem}; read back what Partition.to_json wrote")


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _abridge(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:2])
    return f"{len(names)}: {shown}{', ...' if len(names) > 2 else ''}"


def check_covers(partition: Partition, model: nn.Module) -> None:
    """Raise :class:`CoverageError` unless the groups hold each trainable parameter of ``model`` exactly once.

    Names each trainable parameter in no group, each name that the model doesn't have, and each second name of
    a tied parameter. A name whose parameter is frozen by now is no error: nothing of it is released.
    """
    first = dict(model.named_parameters())
    every = dict(model.named_parameters(remove_duplicate=False))
    named = [name for _, members in partition.groups for name in members]
    problems = [
        f"trainable parameter {name!r} is in no group"
        for name, p in first.items()
        if p.requires_grad and name not in set(named)
    ]
    problems += [f"the model has no parameter {name!r}" for name in named if name not in every]
    original = {id(p): name for name, p in first.items()}
    problems += [
        f"{name!r} is tied to {original[id(every[name])]!r}: one parameter, known by that name"
        for name in named
        if name in every and name not in first
    ]
    if problems:
        raise CoverageError(
            f"the partition ({partition.style}) doesn't fit {type(model).__name__}: {'; '.join(problems)}. "
            "Make it from the model as it is trained: partition(model, style)"
        )
