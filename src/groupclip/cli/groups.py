"""What a noise multiplier means for each group, as ``calibrate`` and ``epsilon`` tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from ..privacy.allocation import ALLOCATIONS, noise_multiplier_of
from .arguments import parse_numbers

_OPTIONS = (
    click.option("--thresholds", help="Tell the noise of every group too, for the thresholds R_1,..,R_M."),
    click.option(
        "--sizes", help="Give the groups' numbers of coordinates d_1,..,d_M, for --allocation dimension and --hardened."
    ),
    click.option(
        "--allocation", type=click.Choice(ALLOCATIONS), help="Choose how the groups share the noise. Default: equal."
    ),
    click.option("--adaptive-share", type=float, help="Give adaptive thresholds this part of the budget, e.g. 0.01."),
    click.option(
        "--hardened", is_flag=True, help="Draw the noise on a grid; a little more noise pays for the rounding."
    ),
)
_NAMES = ("thresholds", "sizes", "allocation", "adaptive_share", "hardened")


def group_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about groups to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def noise_by_group(given: dict[str, Any], sigma: float) -> dict[str, Any]:
    """Return the noise on each group's sum (standard deviation), for the options (taken out of ``given``); {} without thresholds.

    Raises:
        ValueError: options that don't fit together.
    """
    asked = {name: given.pop(name) for name in _NAMES}
    if asked["thresholds"] is None:
        idle = [name for name in _NAMES[1:] if asked[name]]
        if idle:
            raise ValueError(
                f"--{idle[0].replace('_', '-')} is about the noise of the groups: give --thresholds R_1,..,R_M too"
            )
        return {}
    from ..clipping.adaptive import Adaptive
    from ..clipping.budget import GroupNoise
    from ..noise.grid import HardenedNoise
    from ..noise.sources import SecureNoise

    bounds = parse_numbers("--thresholds", asked["thresholds"])
    if asked["sizes"] is None and (asked["allocation"] == "dimension" or asked["hardened"]):
        raise ValueError(
            "--allocation dimension and --hardened depend on the sizes of the groups: give --sizes d_1,..,d_M"
        )
    sizes = [1.0] * len(bounds) if asked["sizes"] is None else parse_numbers("--sizes", asked["sizes"])
    if len(sizes) != len(bounds) or any(size != int(size) or size < 1 for size in sizes):
        raise ValueError(f"--sizes needs {len(bounds)} whole numbers, as many as thresholds")
    share, start = asked["adaptive_share"], dict(_name(bounds))
    amounts = GroupNoise(
        start if share is None else Adaptive(start=start, share=share),
        asked["allocation"] or "equal",
        {name: int(size) for name, size in _name(sizes)},
        sigma,
        HardenedNoise() if asked["hardened"] else SecureNoise(),
    )
    found = {"noise_std": amounts.stds, "other_releases": amounts.other_releases, "rounding": amounts.rounding}
    return {name: value for name, value in found.items() if value}


def multiplier_of(noise_stds: str, thresholds: str | None) -> float:
    """Return the noise multiplier that given standard deviations amount to. ValueError unless each group has a threshold."""
    if thresholds is None:
        raise ValueError("--noise-stds is noise against thresholds: give --thresholds R_1,..,R_M too")
    stds, bounds = parse_numbers("--noise-stds", noise_stds), parse_numbers("--thresholds", thresholds)
    if len(stds) != len(bounds) or min(bounds) <= 0 or min(stds) < 0:
        raise ValueError(f"--noise-stds needs {len(bounds)} numbers >= 0 for as many thresholds > 0")
    return noise_multiplier_of(dict(_name(stds)), dict(_name(bounds)))


def text(found: Mapping[str, Any]) -> str:
    """Return what :func:`noise_by_group` found, for a person."""
    lines = [f"noise             {std:.6g} on {name}" for name, std in found["noise_std"].items()]
    lines += [
        f"also released     {name}, noise multiplier {z:.6g}" for name, z in found.get("other_releases", {}).items()
    ]
    return "\n".join(lines)


def _name(values: list[float]) -> list[tuple[str, float]]:
    return [(f"group {number}", value) for number, value in enumerate(values, 1)]
