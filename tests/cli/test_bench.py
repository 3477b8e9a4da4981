"""``groupclip bench``: a row for each style, on the model that was asked for; and refusals."""

import json

import pytest

from groupclip.cli.app import run


def test_ratios_by_style(capsys):
    arguments = [
        "bench",
        "--workload",
        "vit-micro",
        "--batch",
        "2",
        "--rounds",
        "2",
        "--styles",
        "all-layer,boundaries:1",
    ]
    assert run([*arguments, "--json", "--device", "cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [way["style"] for way in told["ways"]] == ["without privacy", "all-layer", "boundaries:1"]
    assert told["environment"]["device"] == "cpu" and told["ways"][2]["groups"] == 2
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("vit-micro, batch 2, 2 rounds, ") and len(lines) == 6


def test_texts(capsys):
    assert (
        run(
            [
                "bench",
                "--workload",
                "text-small",
                "--batch",
                "2",
                "--rounds",
                "1",
                "--styles",
                "layer-wise",
                "--tokens",
                "8",
            ]
        )
        == 0
    )
    assert "layer-wise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "vit-medium"], "is unknown; there are vit-micro"),
        (["--workload", "vit-micro", "--tokens", "8"], "--tokens means nothing to vit-micro"),
        (["--workload", "gpt2-small", "--image-size", "8"], "--image-size means nothing to gpt2-small"),
        (["--workload", "vit-micro", "--styles", "layerwise"], "unknown clipping style"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert run(["bench", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
