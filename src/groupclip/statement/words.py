"""The privacy statement in words, for a reader who answers for data protection and not for mathematics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from groupclip.noise.sources import KEY_GIVEN
from groupclip.privacy import accounting
from groupclip.privacy.figures import figure, reading
from groupclip.privacy.thresholds import sensitivity
from groupclip.statement.command import command
from groupclip.statement.correlated import correlated
from groupclip.statement.covered import covered, not_covered
from groupclip.statement.facts import others, told_curve
from groupclip.statement.terms import CLIPPED, CYCLIC, SAMPLINGS, kind_of

if TYPE_CHECKING:
    from groupclip.statement.record import PrivacyRecord

_ADJACENCY = {
    "add-or-remove-one": "adding or removing that one {unit}",
    "zero-out": "replacing that one {unit} by one that adds nothing",
    "replace-one": "replacing that one {unit} by any other",
}
_BATCHES = {
    "poisson": "each of the {n:,} {unit}s enters each step's batch independently with probability q = {q:.6g}",
    "truncated-poisson": (
        "each of the {n:,} {unit}s is drawn independently with probability q = {q:.6g}, and at most {cap:,} of those drawn, "
        "chosen at random, make the batch"
    ),
    "without-replacement": "each batch is a random choice of exactly {batch:,} of the {n:,} {unit}s",
    "full-batch": "each batch holds all {n:,} {unit}s",
    CYCLIC: (
        "the {n:,} {unit}s were dealt into {bands} parts at random, steps draw from the parts in turn, and each {unit} of a part "
        "enters the step's batch independently with probability {rate:.6g}"
    ),
}
_KINDS = {
    "poisson": "Poisson samples",
    "truncated-poisson": "truncated Poisson samples",
    CYCLIC: "cyclic Poisson samples",
}


def paragraphs(record: PrivacyRecord) -> list[tuple[str, str]]:
    """Write the statement as (heading, words) of each paragraph, the result first."""
    told = [("Result", _result(record))]
    if not record.obstacles:
        told = [("Result", f"{_result(record)} {lead(record)}")]
        told += [("What it means", _meaning(record)), ("Who is protected", _protected(record))]
    told += [
        ("How it was done", _method(record)),
        ("How batches were chosen", _sampling(record)),
        ("Randomness", _randomness(record)),
    ]
    if not record.obstacles:
        told.append(("How the figure was computed", _accounting(record)))
        told.append(("What is covered", covered(record)))
    told.append(("What is not covered", not_covered(record)))
    return told


def lead(record: PrivacyRecord) -> str:
    """Say whom the guarantee is about, which every reader has to know."""
    if record.obstacles:
        return "NOT PRIVATE: no epsilon is claimed, for the reasons given below."
    if record.mechanism.unit == "user":
        return "The guarantee is about one user; a person who appears as several users is protected less."
    if record.mechanism.unit == "client":
        return "The guarantee is about one client; a person whose data several clients hold is protected less."
    return "The guarantee is about one sample; a person with several samples in the data is protected less."


def _result(record: PrivacyRecord) -> str:
    if record.obstacles:
        return (
            "NOT PRIVATE. No epsilon is claimed for this run, because " + ", and ".join(record.obstacles) + ". Treat "
            "the weights as if they contained the training data."
        )
    spent = record.spent
    assert spent is not None  # there are no obstacles
    if spent.steps == 0:
        return (
            "No step was released yet, so epsilon is 0. This covers what groupclip releases: weights that were moved by hand, "
            "by gradients without noise, are not private." + (f" {_earlier(record)}" if record.earlier else "")
        )
    condition = ""
    if not record.sampling_is_ours:
        kind = (
            "Poisson samples"
            if kind_of(record.mechanism) == "poisson"
            else f"drawn {SAMPLINGS[kind_of(record.mechanism)]}"
        )
        condition = f", provided that the batches were {kind} (see below)"
    return (
        f"The model was trained with differential privacy: epsilon = {figure(spent.epsilon)} at delta = "
        f"{record.delta:g}{condition}. By the usual reading of epsilon this is {reading(spent.epsilon)}."
        + (f" THIS IS THE COST OF THESE {spent.steps:,} STEPS ALONE. {_earlier(record)}" if record.earlier else "")
    )


def _earlier(record: PrivacyRecord) -> str:
    """Tell what was spent on the same weights before."""
    told = []
    for training in record.earlier:
        epsilon = training.epsilon(record.delta)
        told.append(
            f"{training.steps:,} steps of another plan or engine"
            + (", after which the weights were given new values" if training.changed else "")
            + (f", for which no epsilon is claimed ({training.obstacle})" if epsilon is None else "")
            + (f", which spent epsilon = {figure(epsilon)} at delta = {record.delta:g}" if epsilon is not None else "")
        )
    amount = record.together
    unless = " Steps before new values don't count if those values know nothing of the data."
    return (
        f"The weights had been trained before, by {'; and by '.join(told)}. "
        + (
            "So the final weights have no privacy guarantee that groupclip knows of, unless the earlier steps were on other data."
            if amount is None
            else f"If the earlier steps were on the same data, all steps together spend up to epsilon = {figure(amount[0])} at "
            f"delta = {amount[1]:g}."
        )
        + unless * any(training.changed for training in record.earlier)
    )


def _meaning(record: PrivacyRecord) -> str:
    spent = record.spent
    assert spent is not None
    factor = figure(math.exp(spent.epsilon)) if spent.epsilon < 50 else f"e^{figure(spent.epsilon)}"
    unit = record.mechanism.unit
    size = record.mechanism.dataset_size
    odds = f", less than one in the number of {unit}s" if record.delta < 1 / size else ""
    much = "MORE than" if record.delta > 1 / size else "as much as"
    lax = (
        ""
        if odds
        else f" That is {much} one in the number of {unit}s ({size:,}), which is too lax: "
        "state epsilon at a smaller delta."
    )
    square = 1 / size**2
    against = f" NIST advises a delta of at most 1/n^2, which is {square:.3g} here." if odds and record.delta > square else ""
    return (
        f"Whoever sees the model learns almost the same about any one {unit} as if that {unit} had never been in the training "
        "data. This holds whatever else they know and however much they compute. In figures: "
        f"{_ADJACENCY[record.mechanism.adjacency].format(unit=unit)} changes the probability of anything they can observe "
        f"by a factor of at most {factor} (e to the power epsilon), except for a part of probability at most {record.delta:g} "
        f"(delta{odds}).{lax}{against} Smaller epsilon and delta protect better."
    )


def _protected(record: PrivacyRecord) -> str:
    general = "The guarantee doesn't hide what is true of many people and could be learnt without any one of them."
    if record.mechanism.unit == "user":
        return (
            f"The unit of privacy is {record.unit}. The gradient of a user's mean loss was clipped as one. A person who "
            f"appears as several users is protected less{_several(record)}. {general}"
        )
    if record.mechanism.unit == "client":
        return (
            f"The unit of privacy is {record.unit}. The update of a client was clipped as one. A person whose data several clients "
            f"hold is protected less{_several(record)}. The guarantee is against those who see what the server releases; the "
            f"server itself sees every update. {general}"
        )
    return (
        f"The unit of privacy is {record.unit}. A person with several samples in the data is protected "
        f"less{_several(record)}. {general}"
    )


def _several(record: PrivacyRecord) -> str:
    """Tell the figures for a person with several samples, or users."""
    if not record.spent_by_several:
        return (
            f": for one with k {record.mechanism.unit}s epsilon is about k times as large or more at this delta, and no sound "
            "accountant is known here that tells how large"
        )
    told = [f"{figure(spent.epsilon)} for one with {k}" for k, spent in record.spent_by_several.items()]
    listed = ", ".join(told[:-1]) + " and " * (len(told) > 1) + told[-1]
    return f": at the same delta, epsilon is {listed} {record.mechanism.unit}s"


def _method(record: PrivacyRecord) -> str:
    mechanism, count = record.mechanism, len(record.thresholds)
    unit = mechanism.unit
    groups = f"{count} {'group' if count == 1 else 'groups'} of parameters ({record.partition_style})"
    total = sensitivity(record.thresholds)
    twice = f" Replacing the {unit} moves the sum by at most twice that." if mechanism.adjacency == "replace-one" else ""
    noise = "Gaussian noise was added to the sum" if mechanism.noise_multiplier else "No noise was added to the sum"
    several = record.views > 1
    rests, what, together = ("updates", "update", "round") if unit == "client" else ("losses", "loss", "batch")
    gradient = f"the mean gradient of {record.views} views of every {unit}" if several else f"the {CLIPPED[unit]} of every {unit}"
    once = f" The views of one {unit} are clipped as one, so their number costs no privacy." if several else ""
    shared = f" {correlated(record)}" if mechanism.bands != 1 else ""
    return (
        f"In each step {gradient} was clipped ({record.clip}) in {groups}, so that one {unit} adds "
        f"at most {total:.6g} in all to the sum.{once}{twice} {noise} (noise multiplier {mechanism.noise_multiplier:.6g}).{shared} "
        f"The sum was then divided by the expected batch size, {mechanism.expected_batch_size:,}. {record.steps:,} of "
        f"{mechanism.steps:,} planned steps were taken. The record beside this statement gives the threshold and "
        f"the noise of every group. The guarantee rests on {rests} of single {unit}s, which groupclip took as they were given: the "
        f"{what} of one {unit} mustn't depend on another {unit} of its {together}."
        + (
            f" Every step also released the following, paid for in the same figure: {others(record)}. These releases move the "
            "thresholds, and the noise with them, after every step; the record has the last thresholds and noise."
            if record.other_releases
            else ""
        )
    )


def _sampling(record: PrivacyRecord) -> str:
    mechanism = record.mechanism
    how = _BATCHES[kind_of(mechanism)].format(
        bands=mechanism.bands,
        rate=mechanism.part_rate,
        n=mechanism.dataset_size,
        unit=mechanism.unit,
        q=mechanism.sample_rate,
        cap=mechanism.max_batch_size or 0,
        batch=mechanism.expected_batch_size,
    )
    kind = _KINDS.get(kind_of(mechanism))
    assumed = f"The figure assumes {kind}: {how}." if kind else f"The figure assumes that {how}."
    own, foreign = (record.steps_by_sampler[sampler] for sampler in ("groupclip", "user"))
    if foreign == 0:
        return assumed + (" groupclip drew every batch in that way." if own else "")
    if own == 0:
        whose = "The sampling was the user's own"
    else:
        whose = f"In {foreign:,} of the {record.steps:,} steps the sampling was the user's own"
    condition = (
        "each batch was a Poisson sample at rate q"
        if kind_of(mechanism) == "poisson"
        else "each batch was drawn in that way"
    )
    if mechanism.unit == "user":
        condition += ", and each loss that was clipped was that of one user"
    held = f"{assumed} {whose}; the figure holds only if {condition}. groupclip can't check that"
    vouched = (
        ": whoever trained the model vouches for it"
        if record.sampling_vouched_by_user
        else ", and nobody vouches for it"
    )
    return f"{held}{vouched}. Shuffled batches of a fixed size are not Poisson samples, and protect less."


def _randomness(record: PrivacyRecord) -> str:
    if record.secure_noise and record.foreign_noise == KEY_GIVEN:
        return (
            "The noise comes from a cryptographic generator (AES-256 in counter mode; on a GPU, a generator that is restarted from "
            "it) under a key that the user gave. Whoever trained the model vouches that this key is secret and was used for no "
            "other noise."
        )
    if record.secure_noise and record.foreign_noise:
        return (
            f"The noise was added by {record.foreign_noise}, which isn't part of groupclip. Whoever trained the model vouches that "
            "this noise is Gaussian, of the stated size and secret."
        )
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
        return f"Before the first step there is nothing to compute. dp-accounting {accounting.version()} computes the figure."
    given = [
        f"{name} {figure(value)}"
        for name, value in (("exact", spent.exact), ("PLD", spent.pld), ("RDP", spent.rdp))
        if value is not None
    ]
    choice = " (both are upper bounds; the smaller is stated)" if len(given) == 2 else ""
    note = (f" Note: {spent.note}." if spent.note else "") + told_curve(record)
    note += f" This command computes it again: {command(record)}"
    if spent.accountant == "exact":
        return (
            f"Full batches are one Gaussian mechanism. Its epsilon is known exactly (Balle and Wang 2018); dp-accounting "
            f"{accounting.version()} computed it: {', '.join(given)}{choice}.{note}"
        )
    return (
        f"The {spent.accountant} accountant of dp-accounting {accounting.version()} computed it: {', '.join(given)}{choice}.{note}"
    )
