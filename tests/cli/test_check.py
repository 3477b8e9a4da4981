"""``groupclip check``: the coverage table, and exit codes."""

import json

import pytest

import groupclip as gc
from groupclip.cli.app import run


def test_the_table_names_every_parameter(capsys):
    assert run(["check", "--task", "digits", "--model", "mlp", "--clipping", "layer-wise", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["clipping"] == "layer-wise"
    assert len(facts["replayed"]) == 5
    assert all(use["operations"] and use["norm"] for use in facts["uses"])


def test_people_get_words(capsys):
    assert run(["check", "--task", "digits", "--model", "linear", "--clipping", "all-layer"]) == 0
    out = capsys.readouterr().out
    assert "parameter" in out
    assert "right: the whole batch, its order shuffled" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nope"], "unknown model 'nope'"),
        (["--clipping", "nope"], "nope"),
        (["--samples", "1"], "samples"),
    ],
)
def test_wrong_arguments_exit_2(arguments, words, capsys):
    assert run(["check", "--task", "digits", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_samples_that_mix_exit_1(monkeypatch, capsys):
    def refuse(*args, **keywords):
        raise gc.PrivacyViolation("module '1' mixes the samples")

    monkeypatch.setattr("groupclip.validate.check", refuse)
    assert run(["check", "--task", "digits", "--model", "linear"]) == 1
    assert "mixes the samples" in capsys.readouterr().err
