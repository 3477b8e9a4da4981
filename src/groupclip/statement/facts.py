"""The facts of a run as names and values, for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from groupclip.noise.sources import KEY_GIVEN
from groupclip.privacy import accounting
from groupclip.privacy.figures import figure
from groupclip.privacy.thresholds import sensitivity
from groupclip.statement.terms import LAST, SAMPLINGS, kind_of, mechanism_name, software

if TYPE_CHECKING:
    from groupclip.statement.record import PrivacyRecord


def facts(record: PrivacyRecord) -> list[tuple[str, str]]:
    """List the facts as (name, value), for a table."""
    spent, mechanism = record.spent, record.mechanism
    claimed = "none claimed: NOT PRIVATE" if spent is None else figure(spent.epsilon)
    return [
        ("unit of privacy", record.unit),
        ("neighbouring data sets", mechanism.adjacency),
        ("epsilon", claimed),
        ("delta", f"{record.delta:g}"),
        *((f"delta at epsilon {figure(epsilon)}", figure(delta)) for epsilon, delta in record.curve.points),
        *([] if record.curve.mu is None else [("mu of the Gaussian curve nearest above, an estimate", figure(record.curve.mu))]),
        *(
            (f"epsilon of a person with {k} {mechanism.unit}s, at the same delta", figure(several.epsilon))
            for k, several in record.spent_by_several.items()
        ),
        ("mechanism", mechanism_name(mechanism)),
        ("dataset size", f"{mechanism.dataset_size:,}"),
        ("expected batch size", f"{mechanism.expected_batch_size:,}"),
        ("sample rate q", f"{mechanism.sample_rate:.6g}"),
        ("steps taken of planned", f"{record.steps:,} of {mechanism.steps:,}"),
        ("noise multiplier", f"{mechanism.noise_multiplier:.6g}"),
        ("clip function", record.clip),
        *([(f"views of one {mechanism.unit}, clipped as one", f"{record.views}")] if record.views > 1 else []),
        ("groups", f"{len(record.thresholds)} ({record.partition_style})"),
        (f"one {mechanism.unit} adds to the sum", f"at most {sensitivity(record.thresholds):.6g} (l2 norm)"),
        ("the sum is divided by", f"the expected batch size, {mechanism.expected_batch_size:,}"),
        (f"{'updates' if mechanism.unit == 'client' else 'losses'} assumed", f"each of one {mechanism.unit} alone"),
        ("sampling assumed", SAMPLINGS[kind_of(mechanism)]),
        *([("bands, steps that share noise", f"{mechanism.bands}")] if mechanism.bands != 1 else []),
        ("sampling used", _whose(record)),
        ("accountant", "none" if spent is None else f"{spent.accountant}, dp-accounting {accounting.version()}"),
        ("released", record.released),
        ("final weights", record.weights or LAST),
        ("spent on these weights before", _before(record)),
        ("tuning", _tuning(record)),
        ("noise", _noise(record)),
        ("un-noised statistics looked at", ", ".join(record.unsafe_statistics) or "none"),
        ("hardened against floating-point attacks", "no" if not record.rounding else "the noise is; the sum isn't"),
        ("also released, noise multiplier", others(record) or "nothing"),
        ("software", ", ".join(f"{name} {version}" for name, version in software().items())),
        ("plan (SHA-256)", mechanism.plan_hash),
    ]


def _before(record: PrivacyRecord) -> str:
    epsilons = [(training.steps, training.epsilon(record.delta)) for training in record.earlier]
    told = [f"{n:,} steps, epsilon {'not claimed' if e is None else figure(e)}" for n, e in epsilons]
    return "; ".join(told) or "nothing that is known to this process"


def told_curve(record: PrivacyRecord) -> str:
    """Tell the whole curve in a sentence, with a blank before it; nothing where it isn't known."""
    points = [f"{figure(delta)} at epsilon {figure(epsilon)}" for epsilon, delta in record.curve.points]
    if not points:
        return ""
    mu = "" if record.curve.mu is None else f"; the nearest Gaussian curve above has mu = {figure(record.curve.mu)}, an estimate"
    return f" At other epsilons delta is at most {', '.join(points)}{mu}."


def _tuning(record: PrivacyRecord) -> str:
    if record.told.search_epsilon is not None:
        return f"counted: the whole search spends epsilon {figure(record.told.search_epsilon)}"
    return "there was none, as whoever trained says" if record.told.search == "none" else "not accounted"


def _noise(record: PrivacyRecord) -> str:
    if not record.secure_noise:
        return "INSECURE: reproducible from a seed"
    if record.foreign_noise == KEY_GIVEN:
        return "secure if the given key is"
    return f"added by {record.foreign_noise}, which isn't part of groupclip; vouched for" if record.foreign_noise else "secure"


def _whose(record: PrivacyRecord) -> str:
    own, foreign = (record.steps_by_sampler[sampler] for sampler in ("groupclip", "user"))
    whose = "the user's own" + (", vouched for," if record.sampling_vouched_by_user else "")
    parts = [f"groupclip's in {own:,} steps"] * bool(own) + [f"{whose} in {foreign:,} steps"] * bool(foreign)
    return ", ".join(parts) or "no step yet"


def others(record: PrivacyRecord) -> str:
    """List what every step released beside the gradients, with its noise."""
    return ", ".join(f"{name} (noise multiplier {z:.6g})" for name, z in record.other_releases.items())
