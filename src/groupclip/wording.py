"""The privacy statement in words, for a reader who answers for data protection and not for mathematics."""

import math

from groupclip import accounting
from groupclip.statement import PrivacyRecord

_ADJACENCY = {"add-or-remove-one": "adding or removing that one sample"}
# The usual reading of epsilon: Ponomareva et al., "How to DP-fy ML" (2023), section 5.2
_READINGS = (
    (1.0, "strong"),
    (10.0, "the range that is usual for trained models: useful, and not strong"),
    (50.0, "weak: the formal guarantee alone rules out little"),
    (math.inf, "no meaningful guarantee: do not describe the model as private on the ground of this figure"),
)


def paragraphs(record: PrivacyRecord) -> list[tuple[str, str]]:
    """(heading, words), the result first."""
    told = [("Result", _result(record))]
    if not record.obstacles:
        told += [("What it means", _meaning(record)), ("Who is protected", _protected(record))]
    told += [
        ("How it was done", _method(record)),
        ("How batches were chosen", _sampling(record)),
        ("Randomness", _randomness(record)),
    ]
    if not record.obstacles:
        told.append(("How the figure was computed", _accounting(record)))
        told.append(("What is covered", _covered(record)))
    told.append(("What is not covered", _not_covered(record)))
    return told


def facts(record: PrivacyRecord) -> list[tuple[str, str]]:
    """(name, value) of the single facts, for a table."""
    spent, mechanism = record.spent, record.mechanism
    claimed = "none claimed: NOT PRIVATE" if spent is None else figure(spent.epsilon)
    return [
        ("unit of privacy", record.unit),
        ("neighbouring data sets", mechanism.adjacency),
        ("epsilon", claimed),
        ("delta", f"{record.delta:g}"),
        ("mechanism", "Poisson-sampled Gaussian (DP-SGD with group-wise clipping)"),
        ("dataset size", f"{mechanism.dataset_size:,}"),
        ("expected batch size", f"{mechanism.expected_batch_size:,}"),
        ("sample rate q", f"{mechanism.sample_rate:.6g}"),
        ("steps taken of planned", f"{record.steps:,} of {mechanism.steps:,}"),
        ("noise multiplier", f"{mechanism.noise_multiplier:.6g}"),
        ("clip function", record.clip),
        ("groups", f"{len(record.thresholds)} ({record.partition_style})"),
        ("sampling assumed", "Poisson"),
        ("sampling used", _whose(record)),
        ("accountant", "none" if spent is None else f"{spent.accountant}, dp-accounting {accounting.version()}"),
        ("tuning", "not accounted"),
        ("noise", "secure" if record.secure_noise else "INSECURE: reproducible from a seed"),
        ("un-noised statistics looked at", ", ".join(record.unsafe_statistics) or "none"),
        ("hardened against floating-point attacks", "no"),
        ("plan (SHA-256)", mechanism.plan_hash),
    ]


def figure(epsilon: float) -> str:
    """Three significant digits, rounded up: the printed guarantee is never better than the proven one."""
    if epsilon == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    # less a hair, so that 2.0 isn't printed as 2.01
    rounded = math.ceil(epsilon / unit - 1e-9) * unit
    return f"{rounded:,.{max(0, -round(math.log10(unit)))}f}" if rounded >= 1e-3 else f"{rounded:.3g}"


def _result(record: PrivacyRecord) -> str:
    if record.obstacles:
        return (
            "NOT PRIVATE. No epsilon is claimed for this run, because " + ", and ".join(record.obstacles) + ". Treat "
            "the weights as if they contained the training data."
        )
    spent = record.spent
    assert spent is not None  # there are no obstacles
    if spent.steps == 0:
        return "Nothing has been learnt from the data yet: no step was released, so epsilon is 0."
    condition = "" if record.sampling_is_ours else ", provided that the batches were Poisson samples (see below)"
    reading = next(words for limit, words in _READINGS if spent.epsilon <= limit)
    return (
        f"The model was trained with differential privacy: epsilon = {figure(spent.epsilon)} at delta = "
        f"{record.delta:g}{condition}. By the usual reading of epsilon this is {reading}."
    )


def _meaning(record: PrivacyRecord) -> str:
    spent = record.spent
    assert spent is not None
    factor = figure(math.exp(spent.epsilon)) if spent.epsilon < 50 else f"e^{figure(spent.epsilon)}"
    odds = "" if record.delta > 1 / record.mechanism.dataset_size else ", less than one in the number of samples"
    lax = (
        ""
        if odds
        else f" That is MORE than one in the number of samples ({record.mechanism.dataset_size:,}), and so too lax: "
        "state epsilon at a smaller delta."
    )
    return (
        "Whoever sees the model, whatever else they know and however much they compute, learns almost the same about "
        "any one sample as if it had never been in the training data: "
        f"{_ADJACENCY[record.mechanism.adjacency]} changes the probability of anything they can observe by a factor "
        f"of at most {factor} (e to the power epsilon), except for a part of probability at most {record.delta:g} "
        f"(delta{odds}).{lax} The smaller epsilon and delta are, the better."
    )


def _protected(record: PrivacyRecord) -> str:
    return (
        f"The unit of privacy is {record.unit}. A person with k samples in the data is protected less: for "
        "them epsilon is k times as large, and delta grows even faster. What is true of many people, and could be learnt "
        "without any one of them, isn't hidden."
    )


def _method(record: PrivacyRecord) -> str:
    mechanism, count = record.mechanism, len(record.thresholds)
    groups = f"{count} {'group' if count == 1 else 'groups'} of parameters ({record.partition_style})"
    total = math.hypot(*record.thresholds.values())
    noise = "Gaussian noise was added to the sum" if mechanism.noise_multiplier else "No noise was added to the sum"
    return (
        f"In each step the gradient of every sample was clipped ({record.clip}) in {groups}, so that one sample adds "
        f"at most {total:.6g} in all to the sum. {noise} (noise multiplier {mechanism.noise_multiplier:.6g}), which "
        f"was then divided by the expected batch size, {mechanism.expected_batch_size:,}. {record.steps:,} of "
        f"{mechanism.steps:,} planned steps were taken. The record beside this statement gives the threshold and "
        "the noise of every group."
    )


def _sampling(record: PrivacyRecord) -> str:
    mechanism = record.mechanism
    assumed = (
        f"The figure assumes Poisson samples: each of the {mechanism.dataset_size:,} samples enters each step's batch "
        f"independently with probability q = {mechanism.sample_rate:.6g}."
    )
    own, foreign = (record.steps_by_sampler[sampler] for sampler in ("groupclip", "user"))
    if foreign == 0:
        return assumed + (" groupclip drew every batch in that way." if own else "")
    if own == 0:
        whose = "The sampling was the user's own"
    else:
        whose = f"In {foreign:,} of the {record.steps:,} steps the sampling was the user's own"
    return (
        f"{assumed} {whose}; the figure holds only if each batch was a Poisson sample at rate q. groupclip can't check "
        "that. Shuffled batches of a fixed size are not Poisson samples, and protect less."
    )


def _randomness(record: PrivacyRecord) -> str:
    if record.secure_noise:
        return (
            "The noise comes from a cryptographic generator (AES-256 in counter mode; on a GPU, a generator that is "
            "restarted from it) under a key of 256 bits of the operating system's randomness, which was never "
            "written down."
        )
    return (
        "INSECURE. The noise comes from a seed, for tests and comparisons. Whoever knows or guesses the seed can subtract "
        "the noise, so this run protects nobody. Train again without the seed to get a private model."
    )


def _accounting(record: PrivacyRecord) -> str:
    spent = record.spent
    assert spent is not None
    if spent.steps == 0:
        return f"By dp-accounting {accounting.version()}; before the first step there is nothing to compute."
    given = [f"{name} {figure(value)}" for name, value in (("PLD", spent.pld), ("RDP", spent.rdp)) if value is not None]
    choice = " (both are upper bounds; the smaller is stated)" if len(given) == 2 else ""
    note = f" Note: {spent.note}." if spent.note else ""
    return f"By the {spent.accountant} accountant of dp-accounting {accounting.version()}: {', '.join(given)}{choice}.{note}"


def _covered(record: PrivacyRecord) -> str:
    return (
        "The final weights, the weights after every step, and every noisy gradient: all of them may be published "
        "together, and anything computed from them alone is covered as well."
    )


def _not_covered(record: PrivacyRecord) -> str:
    told = [
        "Tuning is not accounted: if settings were chosen by comparing several runs on these data, all of those runs "
        "count, and the true epsilon is larger.",
        "Neither are figures that were measured on the training data themselves (such as their loss or accuracy).",
        "The noise is added in floating-point arithmetic that isn't hardened against attacks on its rounding, and the "
        "time that steps take isn't hidden.",
    ]
    if record.unsafe_statistics:
        told.insert(
            0,
            "UN-NOISED STATISTICS WERE LOOKED AT during training: "
            + ", ".join(record.unsafe_statistics)
            + ". They can reveal single samples. They aren't covered, must not be published, and neither is any decision "
            "that was made because of them covered.",
        )
    return " ".join(told)


def _whose(record: PrivacyRecord) -> str:
    own, foreign = (record.steps_by_sampler[sampler] for sampler in ("groupclip", "user"))
    parts = [f"groupclip's in {own:,} steps"] * bool(own) + [f"the user's own in {foreign:,} steps"] * bool(foreign)
    return ", ".join(parts) or "no step yet"
