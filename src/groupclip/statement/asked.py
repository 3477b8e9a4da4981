"""The questions that readers of a guarantee ask, each answered from its record, or marked as not known to groupclip.

They are those of the checklist of Ponomareva et al., "How to DP-fy ML" (2023), section 5.3, and of NIST SP 800-226, "Guidelines for
evaluating differential privacy guarantees" (2025). From a record as JSON: without the model, the data, or torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from groupclip.privacy.figures import figure, reading
from groupclip.statement.drawn import DrawnBudget
from groupclip.statement.terms import NEIGHBOURS
from groupclip.statement.told import Told

CHECKLIST, NIST = "How to DP-fy ML, 5.3", "NIST SP 800-226"
UNKNOWN = "Not known to groupclip"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question, where it is from, and its answer; ``known`` is False where a part of the answer isn't known to groupclip."""

    source: str
    topic: str
    question: str
    answer: str

    @property
    def known(self) -> bool:
        return UNKNOWN not in self.answer


def questions(record: Mapping[str, Any]) -> list[Question]:
    """Return every question with its answer.

    Args:
        record: of a run, as :meth:`groupclip.statement.PrivacyRecord.to_dict` has it.

    Raises:
        ValueError: it is no such record, or was cut.
    """
    try:
        asked = [*_checklist(record), *_nist(record)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the record can't be read: {type(error).__name__} {error}") from error
    return [Question(source=source, topic=topic, question=question, answer=answer) for source, topic, question, answer in asked]


def _or_unknown(told: str, what: str = "") -> str:
    return told or f"{UNKNOWN}{what and f': {what}'}."


def _read(told: str) -> str:
    """Tell what was read of the data beside the training, and that the figure doesn't hold it."""
    if not told:
        return f"{UNKNOWN}."
    sentence = told if told.endswith(".") else f"{told}."
    return sentence if _NO.match(told) else f"{sentence} The figure doesn't cover that."


_NO = re.compile(r"(no|none|nothing|nobody|never)\b", re.IGNORECASE)


def _claim(record: Mapping[str, Any]) -> str:
    if record["epsilon"] is None:
        return f"None: no epsilon is claimed, because {'; '.join(record['obstacles'])}."
    return (
        f"The model is (epsilon, delta) differentially private with epsilon = {figure(record['epsilon'])} and delta = "
        f"{record['delta']:g}, for the unit and the neighbouring data sets that are given here."
    )


def _checklist(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    told = Told.from_dict(record["told"])
    own, foreign = record["sampling_used"]["groupclip"], record["sampling_used"]["user"]
    software = ", ".join(f"{name} {version}" for name, version in record["software"].items())
    vouched = " Whoever trained vouches for it." if record["sampling_vouched_by_user"] else ""
    yield (
        CHECKLIST, "trust setting", "Is the guarantee central or local, and who has to be trusted?",
        f"Central: whoever trained saw the data, and is trusted with them. {_or_unknown(told.trust, 'who that is')}",
    )  # fmt: skip
    for topic, question, answer in (
        ("vocabulary", "Was a vocabulary made from these data before training?", told.vocabulary),
        ("normalisation constants", "Were constants of the preprocessing computed from these data?", told.constants),
        ("filtering", "Were records chosen or left out by what is in them?", told.filtering),
        ("early stopping", "Was the number of steps, or the checkpoint, chosen by a score on these data?", told.early_stopping),
    ):
        yield CHECKLIST, topic, question, _read(answer)
    looks = ", ".join(record["unsafe_statistics"])
    yield (
        CHECKLIST, "looks without noise", "Was anything else read of the data without noise during training?",
        f"Yes, and the figure doesn't cover it: {looks}." if looks else "Nothing that groupclip was asked for.",
    )  # fmt: skip
    yield CHECKLIST, "search", "Does the figure cover the search for settings?", _search(told, record)
    yield (
        CHECKLIST, "what is released", "Which outputs does the guarantee cover?",
        f"{_begun(record['released'])}. The published weights are {record['weights']}.",
    )  # fmt: skip
    yield CHECKLIST, "unit of privacy", "Who or what is protected?", f"{_begun(record['unit_of_privacy'])}."
    neighbours = NEIGHBOURS[record["adjacency"]].format(unit=_unit(record))
    yield CHECKLIST, "adjacency", "Which data sets are neighbours?", f"Those that differ by {neighbours} ({record['adjacency']})."
    yield (
        CHECKLIST, "accounting", "Which accountant computed the figure?",
        "None." if record["accountant"] is None else f"{record['accountant']}, of {record['accounting_library']}: an upper bound.",
    )  # fmt: skip
    yield (
        CHECKLIST, "assumptions", "What does the accounting assume, and was it so?",
        f"Batches drawn {record['sampling_assumed']}; groupclip drew {own:,} of {own + foreign:,}.{vouched} Losses "
        f"{record['losses_assumed']}, as they were given.",
    )  # fmt: skip
    yield CHECKLIST, "formal statement", "What is the guarantee, formally?", _claim(record)
    yield (
        CHECKLIST, "versions and commit", "With which code was it made, and can it be verified?",
        f"{software}; plan (SHA-256) {record['plan_hash']}. groupclip is open source. groupclip epsilon --record privacy.json "
        f"computes the figure again. Commit of the program: {_or_unknown(told.commit)}",
    )  # fmt: skip


def _begun(words: str) -> str:
    return words[:1].upper() + words[1:]


def _search(told: Told, record: Mapping[str, Any]) -> str:
    if told.search == "none":
        budget = _budget(record)
        but = budget.contradicts(told.search) if budget else ""
        if but:
            return f"Whoever trained says that there was none. {but}"
        return "There was none: no other run on these data was looked at."
    if told.search == "counted":
        assert told.search_epsilon is not None
        return f"It is counted: the whole search spends epsilon = {figure(told.search_epsilon)} at delta = {record['delta']:g}."
    if told.search == "not counted":
        return "Settings were chosen by runs on these data, and that is not counted: the true epsilon is larger."
    return f"The figure covers one run. {UNKNOWN}: whether settings were chosen by other runs on these data."


def _budget(record: Mapping[str, Any]) -> DrawnBudget | None:
    held = record.get("budget")  # the first records of this schema haven't it
    return None if held is None else DrawnBudget.from_dict(held)


def _composition(told: Told, record: Mapping[str, Any]) -> str:
    budget = _budget(record)
    if budget is None:
        return _or_unknown(told.others, "what else there is")
    return f"{budget.told()}. {_or_unknown(told.others, 'what else there is, outside that budget')}"


def _nist(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    told, unit = Told.from_dict(record["told"]), _unit(record)
    several = ", ".join(f"{figure(value)} for {k}" for k, value in record["epsilon_by_samples_of_a_person"].items())
    hardened = record["hardened_against_floating_point_attacks"]
    yield NIST, "epsilon", "How strong is epsilon?", _strength(record)
    yield NIST, "delta against 1/n^2", "Is delta small against the number of people?", _delta(record)
    yield NIST, "the whole curve", "What is delta at other epsilons?", _curve(record)
    yield (
        NIST, "contributions", "What if one person contributed several records?",
        f"At the same delta, epsilon is {several} {unit}s." if several else f"No figure is stated for several {unit}s.",
    )  # fmt: skip
    yield (
        NIST, "trust model", "Against whom does the guarantee hold?",
        "Against all who see what is released, whatever else they know and however much they compute. Not against whoever trained.",
    )  # fmt: skip
    yield (
        NIST, "bias against small groups", "Does the noise harm some people more?",
        f"Clipping and noise weigh more where there are few {unit}s: the model may be less accurate for small groups. "
        f"{_or_unknown(told.small_groups, 'how much')}",
    )  # fmt: skip
    yield (
        NIST, "side channels", "What does the implementation leak beside its output?",
        f"{_HARDENED if hardened else 'Noise is added in floating point, which is not hardened.'} The time that steps take isn't "
        "hidden. Caches and memory aren't considered.",
    )  # fmt: skip
    yield NIST, "randomness", "Where does the noise come from?", _randomness(record)
    yield (
        NIST, "composition", "What else is released from the same data?",
        f"The figure is of one training. {_composition(told, record)}",
    )  # fmt: skip
    yield NIST, "access and collection", "How are the data themselves guarded?", _or_unknown(told.access)


_HARDENED = "The noise is exact, on a grid; the sum under it is in floating point."


def _unit(record: Mapping[str, Any]) -> str:
    return record["losses_assumed"].removeprefix("each of one ").removesuffix(" alone")


def _strength(record: Mapping[str, Any]) -> str:
    epsilon = record["epsilon"]
    return _claim(record) if epsilon is None else f"By the usual reading, {reading(epsilon)}."


def _delta(record: Mapping[str, Any]) -> str:
    size, delta = record["dataset_size"], record["delta"]
    square = 1 / size**2
    if delta <= square:
        judged = "at most 1/n^2"
    elif delta < 1 / size:
        judged = "ABOVE 1/n^2, and below 1/n"
    else:
        judged = "NOT below 1/n, so it promises nothing"
    against = f"for n = {size:,} {_unit(record)}s, 1/n is {1 / size:.3g} and 1/n^2 is {square:.3g}"
    return f"delta = {delta:g}; {against}. delta is {judged}."


def _curve(record: Mapping[str, Any]) -> str:
    points = "; ".join(f"{figure(point['delta'])} at epsilon {figure(point['epsilon'])}" for point in record["delta_curve"])
    if not points:
        return "Nothing is claimed."
    mu = record["gdp_mu_estimate"]
    return f"At most {points}." + (f" The nearest Gaussian curve above has mu = {figure(mu)}, an estimate." if mu else "")


def _randomness(record: Mapping[str, Any]) -> str:
    if not record["secure_noise"]:
        return "A seed: the noise can be subtracted again."
    if record["noise_source"] == "groupclip":
        return "groupclip: a cryptographic generator under a secret key."
    return f"{record['noise_source']}; whoever trained vouches for it."
