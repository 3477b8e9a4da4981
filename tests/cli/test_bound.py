"""``groupclip bound``: the library's figures, a plot, and refusals."""

import json

import pytest

from groupclip.cli.app import run
from groupclip.theory import (
    Setting,
    dp_sgd,
    headline,
    proof_last_line,
    sgd,
    sgd_from_squares,
    small_level,
    theorem_as_printed,
)

SETTING = Setting(steps=10_000, batch_size=1000, noise_multiplier=1, parameters=10**6, gap=1, smoothness=1, xi=1)


def test_the_librarys_figures(capsys):
    assert run(["bound", "--groups", "1,4,75", "--steps", "10000", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["groups"] for row in told["dp_sgd"]] == [1, 4, 75]
    for row in told["dp_sgd"]:
        m = row["groups"]
        found = dp_sgd(SETTING, m)
        assert (row["bound"], row["r"], row["level"]) == (found.norm, found.r, found.level)
        assert row["informative"] == (m == 1)
        assert row["headline"] == headline(SETTING, m)
        assert row["small_level"] == small_level(SETTING, m)
        assert row["proof_last_line"] == proof_last_line(SETTING, m)
        assert row["theorem_as_printed"] == theorem_as_printed(SETTING, m)
    assert told["sgd"] == [{"steps": 10_000, "bound": sgd(SETTING), "from_squares": sgd_from_squares(SETTING)}]
    assert told["trivial"] == SETTING.trivial


def test_every_option_counts(capsys):
    def bound(*options):
        assert run(["bound", "--groups", "4", "--steps", "10000", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)["dp_sgd"][0]["bound"]

    plain = bound()
    for options in (
        ["--batch-size", "500"], ["--noise-multiplier", "2"], ["--parameters", "9000000"], ["--gap", "2"], ["--smoothness", "2"],
        ["--xi", "2"], ["--rho", "0.2"], ["--gamma", "0.1"], ["--sample-rate", "0.1"],
    ):  # fmt: skip
        assert bound(*options) != plain, options
    assert bound("--sample-rate", "1") == plain


def test_people_get_a_table(capsys):
    assert run(["bound", "--groups", "1,75", "--steps", "100,10000"]) == 0
    told = capsys.readouterr().out
    rows = [line.split()[:2] for line in told.splitlines()[3:9]]
    assert rows == [["100", "1"], ["100", "75"], ["10,000", "1"], ["10,000", "75"], ["100", "SGD"], ["10,000", "SGD"]]
    assert "a bound above that says nothing" in told


@pytest.mark.parametrize(("name", "start"), [("bound.png", b"\x89PNG"), ("bound.svg", b"<?xml")])
def test_plot(tmp_path, capsys, name, start):
    assert run(["bound", "--groups", "1,4", "--steps", "1000", "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "1"], "Missing option '--steps'"),
        (["--groups", "1,x", "--steps", "10"], "--groups '1,x' can't be read"),
        (["--groups", "0", "--steps", "10"], "0 must be >= 1"),
        (["--groups", "1", "--steps", "-3"], "-3 must be >= 1"),
        (["--groups", "1", "--steps", "10", "--rho", "1"], "rho=1.0 must be in (0, 1)"),
        (["--groups", "1", "--steps", "10", "--xi", "nan"], "xi=nan must be finite"),
        (["--groups", "1", "--steps", "10", "--sample-rate", "2"], "must be in (0, 1]"),
        (["--groups", "1", "--steps", "10", "--plot", "bound.pdf"], "a figure is saved as .png or .svg"),
        (["--groups", "1", "--steps", "10", "--plot", "/nowhere/bound.png"], "/nowhere/bound.png"),
    ],
)
def test_a_wrong_argument_is_exit_code_2(capsys, arguments, message):
    assert run(["bound", *arguments]) == 2
    told, errors = capsys.readouterr()
    assert told == ""
    assert message in errors.replace("\n", " ")


def test_help_has_an_example(capsys):
    assert run(["bound", "--help"]) == 0
    assert "groupclip bound --groups 1,4,75 --steps 10000" in capsys.readouterr().out
