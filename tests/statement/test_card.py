"""The model card: what a reader needs who has nothing else, and a header that the Hub reads."""

import dataclasses
from datetime import UTC, date, datetime

import pytest

from groupclip.privacy.figures import figure
from groupclip.privacy.mechanism import Mechanism
from groupclip.statement.asked import questions
from groupclip.statement.card import FORMAT, model_card
from groupclip.statement.record import SCHEMA, PrivacyRecord

PLAN = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250, noise_multiplier=1.01)


def record(**changes) -> PrivacyRecord:
    facts = {
        "mechanism": PLAN, "delta": 1e-5, "steps_by_sampler": {"groupclip": 250, "user": 0},
        "thresholds": {"first": 0.6, "second": 0.8}, "noise_std": {"first": 1.01, "second": 1.01}, "clip": "automatic",
        "partition_style": "uniform:2", "secure_noise": True,
    }  # fmt: skip
    return PrivacyRecord(**{**facts, **changes})


def test_model_card():
    card = model_card(
        record(thresholds={"a|b": 0.6, "c_*": 0.8}, noise_std={"a|b": 1.01, "c_*": 1.01}),
        title="Digits",
        introduction="A small ViT.",
        tags=["vision", "dp-sgd", 'odd: "tag"'],
        sections={"How to load": "`safetensors.torch.load_file`"},
    )
    header, body = card.split("---\n")[1:3]
    assert header.splitlines() == [
        "library_name: pytorch", "tags:", '- "differential-privacy"', '- "dp-sgd"', '- "groupclip"', '- "vision"',
        '- "odd: \\"tag\\""',
    ]  # fmt: skip
    assert body.lstrip().startswith(
        "# Digits\n\nA small ViT. The guarantee is about one sample; a person with several "
    )
    assert "\n\n## Privacy\n\n**Result.** " in body
    assert body.endswith("## How to load\n\n`safetensors.torch.load_file`\n")
    assert "| a\\|b | 0.6 | 1.01 |" in body and "| c\\_\\* | 0.8 | 1.01 |" in body
    rows = [line for line in body.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {3, 4}  # two columns, and three of the groups


def test_the_default_card_reads_as_yaml():
    import yaml

    header = yaml.safe_load(model_card(record()).split("---\n")[1])
    assert header == {"library_name": "pytorch", "tags": ["differential-privacy", "dp-sgd", "groupclip"]}


def first_paragraph(card: str) -> str:
    return card.split("---\n")[2].strip().split("\n\n")[1]


def test_the_first_paragraph_says_who_is_protected_less():
    assert first_paragraph(model_card(record(), introduction="A small ViT.")) == (
        "A small ViT. The guarantee is about one sample; a person with several samples in the data is protected less."
    )
    users = record(mechanism=dataclasses.replace(PLAN, unit="user"))
    assert "a person who appears as several users is protected less" in first_paragraph(model_card(users))
    assert first_paragraph(model_card(record(secure_noise=False))).startswith("NOT PRIVATE: no epsilon is claimed")
    # and so does that of the statement, which is read alone too
    assert "a person with several samples in the data is protected less" in record().text().split("\n\n")[0]
    assert "is protected less" not in record(secure_noise=False).text().split("\n\n")[0]


def test_date_and_schemas_are_told_and_who_is_responsible_is_to_be_filled_in():
    lines = model_card(record(), made_on=date(2026, 3, 1)).splitlines()
    assert "- Date: 2026-03-01" in lines
    assert "- Responsible: ______________________________ (to fill in: name, and how to reach them)" in lines
    assert f"- Schema: {FORMAT}; of the record privacy.json: {SCHEMA}" in lines
    assert record().to_dict()["schema"] == SCHEMA
    assert "To fill in: what the model is meant for, for whom, and what it isn't meant for" in "\n".join(lines)


def test_what_is_filled_in_stands_there():
    card = model_card(record(), responsible="Ada, ada@example.org", intended_use="To sort digits.")
    assert "- Responsible: Ada, ada@example.org\n" in card
    assert "\n\n## Intended use\n\nTo sort digits.\n\n## Privacy\n" in card
    assert "to fill in" not in card.lower()


def test_the_day_is_todays():
    before = datetime.now(UTC).date()
    card = model_card(record(), made_on=None)
    assert any(f"- Date: {d.isoformat()}\n" in card for d in (before, datetime.now(UTC).date()))


def test_the_first_sentence_on_privacy_names_epsilon_and_delta_or_why_there_is_none():
    def first(of) -> str:
        return model_card(of).split("## Privacy\n\n**Result.** ")[1].split("\n")[0].replace(". By the", "\n").split("\n")[0]

    stated = figure(record().spent.epsilon)
    assert first(record()) == f"The model was trained with differential privacy: epsilon = {stated} at delta = 1e-05"
    assert first(record(secure_noise=False)).startswith(
        "NOT PRIVATE. No epsilon is claimed for this run, because the noise was made from a seed"
    )


@pytest.mark.parametrize("changed", [{}, {"secure_noise": False}, {"mechanism": dataclasses.replace(PLAN, unit="user")}])
def test_no_words_of_the_statement_have_backticks(changed):
    of = record(**changed)
    assert all("`" not in each.answer for each in questions(of.to_dict())) and "`" not in of.text()
    assert "\\`" not in model_card(of)
