"""A privacy record, computed again from its public facts: without the model, the data, or torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from groupclip.privacy.allocation import ROUNDING, noise_multiplier_of
from groupclip.privacy.curve import Curve, curve_of
from groupclip.privacy.earlier import EarlierTraining
from groupclip.privacy.mechanism import UNITS, Mechanism
from groupclip.statement.derived import obstacles_of, released, spent_by_several
from groupclip.statement.shape import check_shape
from groupclip.statement.terms import CYCLIC, SAMPLINGS, kind_of, mechanism_name
from groupclip.statement.terms import UNITS as WORDS

_CLOSE = 1e-6  # share: of figures that the same version of dp-accounting computes


def plan_of(record: Mapping[str, Any]) -> Mechanism:
    """Return the plan that a record tells. Raises ValueError, saying what is missing or wrong, if it is no record."""
    check_shape(record)
    units = [unit for unit in UNITS if record["losses_assumed"] == f"each of one {unit} alone"]
    samplings = [name for name, told in SAMPLINGS.items() if told == record["sampling_assumed"]]
    samplings = ["poisson" if name == CYCLIC else name for name in samplings]
    if not units or not samplings:
        raise ValueError("its sampling or its losses are of no kind that groupclip knows")
    return Mechanism(
        dataset_size=record["dataset_size"],
        expected_batch_size=record["expected_batch_size"],
        steps=record["steps_planned"],
        noise_multiplier=record["noise_multiplier"],
        adjacency=record["adjacency"],
        sampling=samplings[0],
        max_batch_size=record["max_batch_size"],
        unit=units[0],
        bands=record.get("bands", 1),
    )


def differences(record: Mapping[str, Any]) -> list[str]:
    """Recompute a record's claims, and return where it claims other than its facts give; empty if it claims what they give.

    Raises:
        ValueError: it is no record, or its facts are no plan.
    """
    plan = plan_of(record)
    found = [*_told(_facts(record, plan)), *_counts(record, plan), *_noise(record, plan)]
    if record["steps_taken"] > plan.steps:
        return [*found, f"steps_taken: {plan.steps} steps were planned, the record says {record['steps_taken']}"]
    try:
        return [*found, *_claim(record, plan)]
    except (KeyError, TypeError, AttributeError) as error:  # the plan of an earlier training was cut
        raise ValueError(f"the record can't be read: {type(error).__name__} {error}") from error


Compared = tuple[str, Any, Any]  # name, what follows, what the record says


def _told(compared: Iterator[Compared]) -> list[str]:
    return [f"{name}: {again!r}, the record says {claimed!r}" for name, again, claimed in compared if not _same(again, claimed)]


def _facts(record: Mapping[str, Any], plan: Mechanism) -> Iterator[Compared]:
    """Compare facts with others that they follow from."""
    user = record["sampling_used"]["user"]
    follows = {
        "plan_hash": plan.plan_hash,
        "sample_rate": plan.sample_rate,
        "mechanism": mechanism_name(plan),
        "sampling_assumed": SAMPLINGS[kind_of(plan)],
        "max_batch_size": plan.max_batch_size,
        "unit_of_privacy": WORDS[plan.unit],
        "normalised_by": plan.expected_batch_size,
        "released": released(plan, (release["name"] for release in record["other_releases"])),
        "sampling_vouched_by_user": bool(user) and record["sampling_vouched_by_user"],
        "tuning_accounted": record["told"]["search"] in ("none", "counted"),
        "accounting_library": f"dp-accounting {record['software'].get('dp-accounting')}",
    }
    for name, again in follows.items():
        yield name, again, record[name]


def _counts(record: Mapping[str, Any], plan: Mechanism) -> list[str]:
    """Compare the steps with those by sampler, and with the rounds: as many without correlated noise, up to as many with it."""
    taken, found = sum(record["sampling_used"].values()), []
    if record["steps_taken"] != taken:
        found.append(f"steps_taken: the steps by sampler are {taken} together, the record says {record['steps_taken']}")
    least = -(-taken // plan.band_count)
    rounds = record.get("rounds", least)
    if not least <= rounds <= taken:
        span = f"{least}" if least == taken else f"{least} to {taken}"
        found.append(f"rounds: {span}, by steps_taken {taken} and bands {plan.band_count}, the record says {rounds}")
    return found


def _noise(record: Mapping[str, Any], plan: Mechanism) -> list[str]:
    others = [release["noise_multiplier"] for release in record["other_releases"]]
    stds = {group["name"]: group["noise_std"] for group in record["groups"]}
    realised = noise_multiplier_of(stds, {group["name"]: group["threshold"] for group in record["groups"]}, others, 0.0)
    if not realised >= (plan.noise_multiplier or 0.0) * (1 - ROUNDING):
        return [f"groups: their noise amounts to a multiplier of {realised:.6g}, the plan says {plan.noise_multiplier:.6g}"]
    return []


def _claim(record: Mapping[str, Any], plan: Mechanism) -> list[str]:
    """Compare whether epsilon is claimed, and then every figure."""
    reasons = obstacles_of(
        plan,
        secure_noise=record["secure_noise"],
        steps_by_sampler=record["sampling_used"],
        vouched=record["sampling_vouched_by_user"],
    )
    found = _told(iter([("private", not reasons, record["private"]), ("obstacles", list(reasons), record["obstacles"])]))
    if record["epsilon"] is None and not reasons:
        return [*found, "epsilon: its facts don't say why none is claimed"]
    if record["epsilon"] is not None and reasons:
        return [*found, f"epsilon: one is claimed, though {' and '.join(reasons)}"]
    found += _told(_figures(record, None if reasons else plan)) + _told(_earlier(record))
    whole = record["told"]["search_epsilon"]
    if whole is not None and record["epsilon"] is not None and whole < record["epsilon"]:
        found.append(f"told: a search that holds this run spends {record['epsilon']!r} or more, the record says {whole!r}")
    return found


def _figures(record: Mapping[str, Any], plan: Mechanism | None) -> Iterator[Compared]:
    """Compare the figures with those of ``plan``; None where nothing is claimed, so that there must be none."""
    delta, steps = record["delta"], record["steps_taken"]
    spent, several, curve = None, {}, Curve()
    if plan is not None:
        rounds = max(record.get("rounds", 0), plan.rounds(steps))
        spent = plan.spent(delta=delta, steps=steps, rounds=rounds)
        several = {str(k): each.epsilon for k, each in spent_by_several(plan, delta=delta, steps=steps).items()}
        curve = curve_of(plan, steps=steps, epsilon=record["epsilon"], rounds=rounds)
    yield "epsilon", None if spent is None else spent.epsilon, record["epsilon"]
    yield "accountant", None if spent is None else spent.accountant, record["accountant"]
    yield "accountant_note", "" if spent is None else spent.note, record["accountant_note"]
    for name in ("rdp", "pld", "exact"):
        yield f"epsilon_{name}", None if spent is None else getattr(spent, name), record[f"epsilon_{name}"]
    stated, unit = record["epsilon_by_samples_of_a_person"], "samples" if plan is None else f"{plan.unit}s"
    for k in dict.fromkeys([*several, *stated]):
        yield f"epsilon of a person with {k} {unit}", several.get(k), stated.get(k)
    yield "delta_curve", [list(point) for point in curve.points], [[p["epsilon"], p["delta"]] for p in record["delta_curve"]]
    yield "gdp_mu_estimate", curve.mu, record["gdp_mu_estimate"]


def _earlier(record: Mapping[str, Any]) -> Iterator[Compared]:
    for place, training in enumerate(record["earlier_trainings"]):
        again = EarlierTraining.from_dict(training).epsilon(record["delta"])
        yield f"earlier_trainings[{place}].epsilon", again, training["epsilon"]


def _same(one: Any, other: Any) -> bool:
    """Compare two values of a record; numbers up to rounding."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if _is_number(one) and _is_number(other):
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-12)
    return type(one) is type(other) and one == other


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
