"""Write the card of a released model, for people who don't have the code: what it is, for whom, and what it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from groupclip.statement.asked import questions
from groupclip.statement.facts import facts
from groupclip.statement.terms import SCHEMA
from groupclip.statement.words import lead, paragraphs

if TYPE_CHECKING:
    from groupclip.statement.record import PrivacyRecord

FORMAT = "groupclip-model-card-1"
_BLANK = "______________________________"


def model_card(
    record: PrivacyRecord,
    *,
    title: str = "A privately trained model",
    introduction: str = "",
    tags: Sequence[str] = (),
    sections: Mapping[str, str] | None = None,
    made_on: date | None = None,
    responsible: str = "",
    intended_use: str = "",
) -> str:
    """Write the README.md of a release: a Hugging Face header, the statement, and the facts as a table.

    Args:
        record: of the training, as ``engine.record(delta=..)`` gives it.
        title: the heading.
        introduction: Markdown under the title. It must hold nothing that was computed on private data without noise.
        sections: heading -> Markdown, after the statement. The same holds for them.
        tags: more tags for the header. "differential-privacy" is among them only if an epsilon is claimed.
        made_on: the day. Default: today (UTC).
        responsible: who answers for the model and its data, and how to reach them. Markdown; a blank to fill in by default.
        intended_use: what the model is for, and what it isn't for. Markdown; a blank to fill in by default.
    """
    day = datetime.now(UTC).date() if made_on is None else made_on

    private = ["differential-privacy", "dp-sgd"] if not record.obstacles else []
    listed = "".join(f"- {json.dumps(tag)}\n" for tag in dict.fromkeys([*private, "groupclip", *tags]))
    parts = [f"---\nlibrary_name: pytorch\ntags:\n{listed}---\n", f"# {title}"]
    parts.append(f"{introduction} {_inline(lead(record))}".strip())
    parts.append(
        f"- Date: {day.isoformat()}\n- Responsible: {responsible or f'{_BLANK} (to fill in: name, and how to reach them)'}\n"
        f"- Schema: {FORMAT}; of the record privacy.json: {SCHEMA}"
    )
    parts += [
        "## Intended use",
        intended_use or f"To fill in: what the model is meant for, for whom, and what it isn't meant for. {_BLANK}",
    ]
    parts.append(privacy_section(record))
    for heading, words in (sections or {}).items():
        parts += [f"## {heading}", words]
    return "\n\n".join(parts) + "\n"


def privacy_section(record: PrivacyRecord) -> str:
    """Write the part of a card that tells the guarantee, as Markdown: statement, facts and groups, under ``## Privacy``."""
    parts = ["## Privacy"]
    parts += [f"**{_cell(heading)}.** {_inline(words)}" for heading, words in paragraphs(record)]
    parts.append("## The facts of the run")
    rows = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in facts(record))
    parts.append(f"| fact | value |\n| --- | --- |\n{rows}")
    parts.append("## Questions that readers ask")
    asked = "\n".join(
        f"| {_cell(f'{each.topic}: {each.question}')} | {_cell(each.answer)} | {each.source} |"
        for each in questions(record.to_dict())
    )
    parts.append(f"| question | answer | asked by |\n| --- | --- | --- |\n{asked}")
    parts.append("### Groups")
    groups = "\n".join(
        f"| {_cell(name)} | {bound:.6g} | {record.noise_std[name]:.6g} |" for name, bound in record.thresholds.items()
    )
    parts.append(
        f"One {record.mechanism.unit} adds at most the threshold to the summed gradient of a group (l2 norm); every coordinate of "
        "that sum gets Gaussian noise of the standard deviation beside it.\n\n"
        f"| group | threshold R_m | noise std |\n| --- | --- | --- |\n{groups}"
    )
    return "\n\n".join(parts)


def _inline(text: str) -> str:
    """Escape plain words for Markdown: names may hold characters that Markdown reads."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", text)


def _cell(text: str) -> str:
    return _inline(" ".join(text.split())).replace("|", "\\|")
