"""``groupclip calibrate`` and ``groupclip epsilon``: the same figures as the library, and clear refusals."""

import json
import re
import subprocess
import sys

import pytest

from groupclip import Mechanism, cli
from groupclip.cli.app import run
from groupclip.privacy.bands import prefix_noise
from groupclip.privacy.figures import figure
from groupclip.privacy.selection import calibrate_search

PAPER = ["--dataset-size", "50000", "--batch-size", "1000", "--epochs", "5", "--delta", "1e-5"]


def test_calibrate_is_the_librarys_calibration(capsys):
    assert run(["calibrate", *PAPER, "--epsilon", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    expected = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250).calibrate(epsilon=2, delta=1e-5)
    assert facts["noise_multiplier"] == expected.noise_multiplier
    assert facts["steps"] == 250
    assert facts["epsilon"] == expected.epsilon(delta=1e-5)
    assert 1.98 <= facts["epsilon"] <= 2


def test_epsilon_is_the_librarys_epsilon(capsys):
    assert run(["epsilon", *PAPER, "--noise-multiplier", "1.1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    mechanism = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250, noise_multiplier=1.1)
    assert facts["epsilon"] == mechanism.epsilon(delta=1e-5) == min(facts["epsilon_rdp"], facts["epsilon_pld"])


@pytest.mark.parametrize(("delta", "lax"), [("1e-3", True), ("1e-5", False), (None, False)])
def test_a_delta_that_means_nothing_is_warned_of(caplog, delta, lax):
    asked = ["--dataset-size", "5000", "--batch-size", "100", "--epochs", "1", "--noise-multiplier", "1"]
    assert run(["epsilon", *asked, *(["--delta", delta] if delta else [])]) == 0
    said = [
        r.getMessage() for r in caplog.records if "more than one in the number of samples (5,000)" in r.getMessage()
    ]
    assert bool(said) == lax
    assert all("at most 1e-05" in words for words in said)


def test_one_undoes_the_other(capsys):
    assert run(["calibrate", *PAPER, "--epsilon", "8", "--json"]) == 0
    sigma = json.loads(capsys.readouterr().out)["noise_multiplier"]
    assert run(["epsilon", *PAPER, "--noise-multiplier", repr(sigma), "--json"]) == 0
    assert 7.92 <= json.loads(capsys.readouterr().out)["epsilon"] <= 8


def test_people_get_words(capsys):
    assert run(["epsilon", *PAPER[:4], "--steps", "250", "--noise-multiplier", "1.1"]) == 0
    told = capsys.readouterr().out
    assert "at delta 1e-05, by PLD" in told
    assert "250 Poisson batches of 1000 samples on average" in told
    assert "add-or-remove-one" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", *PAPER], "Missing option '--epsilon'"),
        (["calibrate", *PAPER, "--epsilon", "0"], "epsilon=0.0 must be > 0"),
        (["calibrate", *PAPER, "--epsilon", "2", "--steps", "5"], "give either --epochs or --steps, not both"),
        (["calibrate", *PAPER[:4], "--epsilon", "2"], "give either --epochs or --steps"),
        (["epsilon", *PAPER[:-1], "2", "--noise-multiplier", "1"], "delta=2.0 must be in"),
        (["epsilon", *PAPER, "--noise-multiplier", "0"], "--noise-multiplier=0"),
        (["epsilon", *PAPER, "--noise-multiplier", "-1"], "must be >= 0"),
        (
            ["epsilon", "--dataset-size", "10", "--batch-size", "20", "--steps", "1", "--noise-multiplier", "1"],
            "larger",
        ),
        (["epsilon", "--dataset-size", "10", "--batch-size", "0", "--epochs", "1", "--noise-multiplier", "1"], "> 0"),
        (["epsilon", "--dataset-size", "x", "--batch-size", "2", "--epochs", "1"], "'x' is not a valid integer"),
        (["publish"], "No such command 'publish'"),
    ],
)
def test_a_wrong_argument_is_exit_code_2(capsys, arguments, message):
    assert run(arguments) == 2
    told, errors = capsys.readouterr()
    assert told == ""
    assert message in errors


SMALL = ["--dataset-size", "1000", "--batch-size", "100", "--steps", "20", "--delta", "1e-5"]
REPLACE = ["--adjacency", "replace-one"]
PAIRS = [
    ([], {}),
    (["--adjacency", "zero-out"], {"adjacency": "zero-out"}),
    (REPLACE, {"adjacency": "replace-one"}),
    (
        ["--sampling", "truncated-poisson", "--max-batch-size", "150", *REPLACE],
        {"sampling": "truncated-poisson", "max_batch_size": 150, "adjacency": "replace-one"},
    ),
    (["--sampling", "without-replacement", *REPLACE], {"sampling": "without-replacement", "adjacency": "replace-one"}),
    (["--sampling", "full-batch", "--batch-size", "1000"], {"sampling": "full-batch", "expected_batch_size": 1000}),
    (["--unit", "user"], {"unit": "user"}),
]


@pytest.mark.parametrize(("options", "facts"), PAIRS, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_every_pair_with_a_sound_accountant(capsys, options, facts):
    plan = {"dataset_size": 1000, "expected_batch_size": 100, "steps": 20, "noise_multiplier": 3.0} | facts
    assert run(["epsilon", *SMALL, *options, "--noise-multiplier", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = Mechanism(**plan)
    assert found["epsilon"] == expected.epsilon(delta=1e-5)
    assert {name: found[name] for name in expected.to_dict()} == expected.to_dict()
    assert run(["epsilon", *SMALL, *options, "--noise-multiplier", "3"]) == 0
    assert f"{expected.unit}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--sampling", "truncated-poisson"],
            "'truncated-poisson' with --adjacency='add-or-remove-one' can't be accounted",
        ),
        (["--sampling", "without-replacement"], "use --adjacency='replace-one'"),
        (["--sampling", "without-replacement", "--adjacency", "zero-out"], "no sound accountant"),
        (["--sampling", "full-batch"], "must be --dataset-size=1000"),
        (["--sampling", "shuffled"], "'shuffled' is not one of"),
        (["--max-batch-size", "200"], "--max-batch-size=200 has no meaning with --sampling='poisson'"),
        ([*REPLACE, "--accountant", "rdp"], "accountant='RDP' has no sound bound"),
        (["--accountant", "exact"], "no sound bound for --sampling='poisson'"),
        ([*REPLACE, "--search", "10"], "needs the RDP of a run"),
        (["--search", "10", "--accountant", "pld"], "known by RDP alone"),
        (["--search", "0.5"], r"--search=0.5 must be in [1"),
    ],
)
def test_pairs_without_a_sound_accountant_are_refused_by_name(capsys, options, message):
    for command in (["calibrate", *SMALL, "--epsilon", "2"], ["epsilon", *SMALL, "--noise-multiplier", "2"]):
        assert run([*command, *options]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("accountant", ["pld", "RDP"])
def test_a_named_accountant(capsys, accountant):
    assert run(["calibrate", *SMALL, "--epsilon", "2", "--accountant", accountant, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["accountant"] == accountant.upper()
    assert 1.98 <= facts["epsilon"] <= 2
    other = "epsilon_rdp" if accountant == "pld" else "epsilon_pld"
    assert facts[other] is None


def test_the_whole_curve_and_mu(capsys):
    asked = ["epsilon", *SMALL, "--noise-multiplier", "2", "--curve", "0.5,1,2", "--gdp-mu"]
    assert run([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    plan = Mechanism(dataset_size=1000, expected_batch_size=100, steps=20, noise_multiplier=2.0)
    assert tuple(point["delta"] for point in facts["curve"]) == plan.delta_curve([0.5, 1.0, 2.0])
    assert facts["gdp_mu_estimate"] == plan.gdp_mu()
    assert run(asked) == 0
    told = capsys.readouterr().out
    assert told.count("\ndelta ") == 3 and "an ESTIMATE for comparisons, no guarantee" in told
    assert run([*asked[:-2], "0.5,-1"]) == 2


def test_little_noise_has_a_note(capsys):
    assert run(["epsilon", *SMALL, "--noise-multiplier", "0.25"]) == 0
    assert "a single step may tell whether a sample was in its batch" in capsys.readouterr().out
    assert run(["epsilon", *SMALL, "--noise-multiplier", "0.35"]) == 0
    assert "a single step" not in capsys.readouterr().out


@pytest.mark.parametrize("sigma", ["20", "30", "60"])
def test_a_small_figure_is_rounded_up_and_not_to_nothing(capsys, sigma):
    asked = ["epsilon", "--dataset-size", "100000", "--batch-size", "100", "--steps", "1", "--noise-multiplier", sigma]
    asked += ["--delta", "1e-6", "--curve", "1e-6", "--search", "3"]
    assert run([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert run(asked) == 0
    told = capsys.readouterr().out
    by_name = {n: float(v) for n, v in re.findall(r"(RDP|PLD) ([\d.e-]+)", told)}
    for line, exact in (
        ("epsilon  ", facts["epsilon"]),
        ("search  +epsilon", facts["search"]["epsilon"]),
        ("delta  ", facts["curve"][0]["delta"]),
    ):
        said = float(re.search(rf"^{line} +([\d.e-]+)", told, re.M)[1])
        assert exact <= said <= 1.01 * exact
    assert by_name["PLD"] >= facts["epsilon_pld"] and by_name["RDP"] >= facts["epsilon_rdp"]


@pytest.mark.parametrize(("sigma", "words"), [("50", "strong"), ("0.2", "no meaningful guarantee")])
def test_a_figure_is_read_for_people(capsys, sigma, words):
    assert run(["epsilon", *SMALL, "--noise-multiplier", sigma]) == 0
    assert f"reading           {words}" in capsys.readouterr().out


@pytest.mark.parametrize("epochs", ["inf", "1e300", "nan", "1e15"])
def test_epochs_without_end_are_refused(capsys, epochs):
    assert run(["calibrate", *SMALL[:4], "--epochs", epochs, "--epsilon", "2"]) == 2
    assert len(capsys.readouterr().err) < 300


def test_a_search_is_paid_for(capsys):
    assert run(["calibrate", *SMALL, "--epsilon", "2", "--search", "10", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["epsilon"] < 1.5
    assert 1.98 <= facts["search"]["epsilon"] <= 2
    sigma = repr(facts["noise_multiplier"])
    assert run(["epsilon", *SMALL, "--noise-multiplier", sigma, "--search", "10"]) == 0
    assert (
        f"epsilon {figure(facts['search']['epsilon'])} at delta 1e-05, by RDP: the best of" in capsys.readouterr().out
    )


def test_the_noise_of_the_groups_amounts_to_the_plans(capsys):
    asked = ["calibrate", *SMALL, "--epsilon", "2", "--thresholds", "0.5,1", "--sizes", "10,4000", "--json"]
    for options in (
        ["--allocation", "dimension"],
        ["--allocation", "threshold"],
        ["--adaptive-share", "0.01"],
        ["--hardened"],
    ):
        assert run([*asked, *options]) == 0
        facts = json.loads(capsys.readouterr().out)
        stds = ",".join(map(repr, facts["noise_std"].values()))
        assert run(["epsilon", *SMALL, "--noise-stds", stds, "--thresholds", "0.5,1", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        extra = 0.01 if "--adaptive-share" in options else 1e-4  # what counts and rounding are paid with
        assert (
            facts["noise_multiplier"] * (1 - 1e-9)
            <= again["noise_multiplier"]
            <= facts["noise_multiplier"] * (1 + extra)
        )
        assert again["epsilon"] <= facts["epsilon"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--allocation", "dimension"], "give --thresholds"),
        (["--thresholds", "1,1", "--allocation", "dimension"], "give --sizes"),
        (["--thresholds", "1,1", "--sizes", "3"], "--sizes needs 2 whole numbers"),
        (["--thresholds", "1,x"], "--thresholds '1,x' can't be read"),
        (["--thresholds", "1,-1"], "must be positive"),
        (["--thresholds", "1", "--adaptive-share", "2"], "share=2.0 must be in (0, 1)"),
    ],
)
def test_wrong_options_of_groups(capsys, options, message):
    assert run(["calibrate", *SMALL, "--epsilon", "2", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --noise-multiplier or --noise-stds"),
        (["--noise-stds", "1,1"], "give --thresholds"),
        (["--noise-stds", "1,1", "--thresholds", "1"], "--noise-stds needs 1 numbers"),
        (["--noise-multiplier", "1", "--thresholds", "1"], "the same whatever the thresholds"),
        (["--noise-stds", "0,1", "--thresholds", "1,1"], "--noise-multiplier=0"),
    ],
)
def test_wrong_noise(capsys, options, message):
    assert run(["epsilon", *SMALL, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["train"], ["calibrate"], ["epsilon"]])
def test_help_has_an_example(capsys, command):
    assert run([*command, "--help"]) == 0
    told = capsys.readouterr().out
    assert "Example" in told
    assert f"groupclip {' '.join(command)}".strip() in told


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit, match=r"needs rich, which isn't installed; run: pip install 'groupclip\[cli\]'"):
        cli.command(["--help"])


def test_as_a_module_it_ends_with_the_exit_code():
    ended = subprocess.run(
        [sys.executable, "-m", "groupclip.cli", "nothing"], capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "No such command" in ended.stderr


def test_epsilon_for_a_person_with_several_samples(capsys):
    asked = ["epsilon", *SMALL, "--noise-multiplier", "2", "--samples-per-user", "2,4"]
    plan = Mechanism(dataset_size=1_000, expected_batch_size=100, steps=20, noise_multiplier=2.0)
    expected = {k: plan.spent(delta=1e-5, samples_per_user=k).epsilon for k in (2, 4)}
    assert run([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {row["samples"]: row["epsilon"] for row in facts["by_samples_of_a_person"]} == expected
    assert facts["epsilon"] < expected[2] / 2 < expected[4] / 4
    assert run(asked) == 0
    told = capsys.readouterr().out
    assert f"epsilon           {figure(expected[4])} for a person with 4 samples, by PLD" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples-per-user", "2.5"], "give whole numbers >= 1"),
        (["--samples-per-user", "2000"], "--samples-per-user=2000 is more than --dataset-size=1000"),
        (
            ["--samples-per-user", "2", "--sampling", "truncated-poisson", "--adjacency", "zero-out"],
            "no sound accountant is at hand for several samples",
        ),
    ],
)
def test_samples_per_user_that_cannot_be_accounted_end_with_code_2(capsys, options, message):
    assert run(["epsilon", *SMALL, "--noise-multiplier", "2", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


BANDED = "--dataset-size 20000 --batch-size 500 --steps 100 --adjacency zero-out --delta 1e-5"


def told(capsys, command, read=str):
    assert run(command.split()) == 0
    return read(capsys.readouterr().out)


def test_epsilon_of_correlated_noise(capsys):
    plan = Mechanism(
        dataset_size=20_000, expected_batch_size=500, steps=100, noise_multiplier=1.2, adjacency="zero-out", bands=8
    )
    command = f"epsilon {BANDED} --noise-multiplier 1.2 --bands 8"
    facts = told(capsys, f"{command} --json", json.loads)
    assert facts["epsilon"] == plan.epsilon(delta=1e-5) and facts["bands"] == 8
    again = told(capsys, f"{command} --rounds 15 --json", json.loads)
    assert again["epsilon"] == plan.spent(delta=1e-5, rounds=15).epsilon and "steps in one go: 2" in again["note"]
    points = told(capsys, f"{command} --rounds 15 --curve 1 --json", json.loads)["curve"]
    assert points == [{"epsilon": 1.0, "delta": plan.delta(epsilon=1.0, rounds=15)}]
    words = told(capsys, command)
    assert "dealt into 8 parts" in words and "13 rounds with independent noise" in words


def test_bands_are_found_with_the_noise(capsys, monkeypatch):
    monkeypatch.setattr("groupclip.privacy.bands.MOST", 3)
    facts = told(capsys, f"calibrate {BANDED} --epsilon 8 --bands auto --json", json.loads)
    assert facts["bands"] == 3 and 7.9 < facts["epsilon"] <= 8.0


@pytest.mark.parametrize("search", ["", " --search 3"])
def test_calibrate_tells_what_bands_gain(capsys, search):
    facts = dict(dataset_size=20_000, expected_batch_size=500, steps=100, adjacency="zero-out")

    def calibrated(bands):
        plan = Mechanism(**facts, bands=bands)
        if search:
            return calibrate_search(plan, epsilon=8, delta=1e-5, mean_runs=3.0, law="geometric")
        return plan.calibrate(epsilon=8, delta=1e-5)

    gain = prefix_noise(calibrated(4)) / prefix_noise(calibrated(1)) - 1
    assert -0.5 < gain < -0.05
    asked = f"calibrate {BANDED} --epsilon 8{search}"
    assert told(capsys, f"{asked} --bands 4 --json", json.loads)["prefix_noise_gain"] == pytest.approx(gain, rel=1e-9)
    assert "prefix_noise_gain" not in told(capsys, f"{asked} --json", json.loads)
    assert run(f"{asked} --bands 4".split()) == 0
    shown = capsys.readouterr()
    assert f"bands             4: {gain:+.1%} noise in sums of gradients" in shown.out
    assert shown.err == "finding the noise ..\n"
    assert run(asked.split()) == 0
    shown = capsys.readouterr()
    assert "noise in sums" not in shown.out and shown.err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bands 8 --adjacency add-or-remove-one", "use --adjacency='zero-out'"),
        ("--bands 41", "use at most 40"),
        ("--bands several", "neither a whole number nor auto"),
        ("--bands auto", "--bands='auto' with --noise-multiplier=1.2"),
        ("--bands 8 --samples-per-user 2", "--samples-per-user=2 can't be accounted with --bands=8"),
        ("--bands 8 --rounds 3", "rounds=3 must be >= 13"),
        ("--bands 8 --rounds 15 --gdp-mu", "leave one of them out"),
    ],
)
def test_wrong_bands(capsys, options, message):
    assert run(f"epsilon {BANDED} --noise-multiplier 1.2 {options}".split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
