"""A privacy record, computed again from its public facts: without the model, the data, or torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from groupclip.privacy.allocation import ROUNDING, noise_multiplier_of
from groupclip.privacy.curve import curve_of
from groupclip.privacy.mechanism import UNITS, Mechanism
from groupclip.statement.terms import CYCLIC, SAMPLINGS, SCHEMA, kind_of, mechanism_name

_CLOSE = 1e-6  # share: of figures that the same version of dp-accounting computes


def plan_of(record: Mapping[str, Any]) -> Mechanism:
    """Return the plan that a record tells. Raises ValueError, saying what is missing or wrong, if it is no record."""
    if record.get("schema") != SCHEMA:
        raise ValueError(f"not a privacy record of this version: its schema is {record.get('schema')!r}, and not {SCHEMA!r}")
    try:
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
    except KeyError as error:
        raise ValueError(f"the record has no {error}: it was cut, or isn't one") from error


def differences(record: Mapping[str, Any]) -> list[str]:
    """Recompute a record's claims, and return where it claims other than its facts give; empty if it claims what they give.

    Raises:
        ValueError: it is no record, or its facts are no plan.
    """
    plan = plan_of(record)
    try:
        return [*_facts(record, plan), *_claim(record, plan)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the record can't be read: {type(error).__name__} {error}") from error


def _facts(record: Mapping[str, Any], plan: Mechanism) -> list[str]:
    found = []
    if record["plan_hash"] != plan.plan_hash:
        found.append(f"plan_hash: the facts of the plan give {plan.plan_hash}, the record says {record['plan_hash']}")
    if not _same(record["sample_rate"], plan.sample_rate):
        found.append(f"sample_rate: {plan.sample_rate!r}, the record says {record['sample_rate']!r}")
    named = mechanism_name(plan)
    if record["mechanism"] != named:
        found.append(f"mechanism: {named!r}, the record says {record['mechanism']!r}")
    if record["sampling_assumed"] != SAMPLINGS[kind_of(plan)]:
        found.append(f"sampling_assumed: {SAMPLINGS[kind_of(plan)]!r}, the record says {record['sampling_assumed']!r}")
    taken = sum(record["sampling_used"].values())
    if record["steps_taken"] != taken:
        found.append(f"steps_taken: the steps by sampler are {taken} together, the record says {record['steps_taken']}")
    if record.get("rounds", plan.rounds(taken)) < plan.rounds(taken):
        found.append(f"rounds: {taken} steps are {plan.rounds(taken)} rounds at least, the record says {record['rounds']}")
    others = [release["noise_multiplier"] for release in record["other_releases"]]
    stds = {group["name"]: group["noise_std"] for group in record["groups"]}
    realised = noise_multiplier_of(stds, {group["name"]: group["threshold"] for group in record["groups"]}, others, 0.0)
    if not realised >= (plan.noise_multiplier or 0.0) * (1 - ROUNDING):
        found.append(f"groups: their noise amounts to a multiplier of {realised:.6g}, the plan says {plan.noise_multiplier:.6g}")
    return found


def _claim(record: Mapping[str, Any], plan: Mechanism) -> list[str]:
    reasons = []
    if not plan.noise_multiplier:
        reasons.append("no noise was added")
    if not record["secure_noise"]:
        reasons.append("the noise is reproducible from a seed")
    if record["sampling_used"]["user"] and not record["sampling_vouched_by_user"]:
        reasons.append("nobody vouches for the sampling of some steps")
    if not record["private"] or record["epsilon"] is None:
        return [] if reasons and record["epsilon"] is None else ["epsilon: its facts don't say why none is claimed"]
    if reasons:
        return [f"epsilon: one is claimed, though {' and '.join(reasons)}"]
    delta, steps = record["delta"], record["steps_taken"]
    rounds = max(record.get("rounds", 0), plan.rounds(steps))
    claims = {1: record["epsilon"]} | {int(k): value for k, value in record["epsilon_by_samples_of_a_person"].items()}
    found = []
    for samples, claimed in claims.items():
        again = plan.spent(delta=delta, steps=steps, samples_per_user=samples, rounds=rounds).epsilon
        if not _same(claimed, again):
            whose = "" if samples == 1 else f" of a person with {samples} {plan.unit}s"
            found.append(f"epsilon{whose}: {again!r} at delta {delta:g}, the record says {claimed!r}")
    return found + _curve(record, plan, steps, rounds)


def _curve(record: Mapping[str, Any], plan: Mechanism, steps: int, rounds: int) -> list[str]:
    again = curve_of(plan, steps=steps, epsilon=record["epsilon"], rounds=rounds)
    told = [(point["epsilon"], point["delta"]) for point in record["delta_curve"]]
    same = len(told) == len(again.points) and all(
        _same(e, at) and _same(d, delta) for (e, d), (at, delta) in zip(told, again.points, strict=True)
    )
    found = [] if same else [f"delta_curve: {[list(point) for point in again.points]}, the record says {[list(p) for p in told]}"]
    mu = record["gdp_mu_estimate"]
    if (mu is None) != (again.mu is None) or (mu is not None and again.mu is not None and not _same(mu, again.mu)):
        found.append(f"gdp_mu_estimate: {again.mu!r}, the record says {mu!r}")
    whole = record["told"]["search_epsilon"]
    if whole is not None and whole < record["epsilon"]:
        found.append(f"told: a search that holds this run spends {record['epsilon']!r} or more, the record says {whole!r}")
    return found


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-12)
