"""Both ways of making normals from words give the exact ones."""

import math
import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from groupclip.noise import boxmuller
from groupclip.noise.boxmuller import InNumPy, InTorch
from groupclip.noise.keystream import Keystream, new_key

WAYS = [InNumPy, InTorch]
EDGES = [0, 1, -1, 2**62, -(2**62), 2**61, 2**63 - 1, -(2**63), -(2**63) + 1, 2**40, 3]


def words(count: int) -> np.ndarray:
    return Keystream(new_key(), "test").words(count).view(np.int64)


def exactly(v: int, w: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The two normals of a pair of words, in 60 digits; u is a float64."""
    with mpmath.workdps(60):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(float(abs(v | 1))) / 2**63))
        angle = mpmath.pi * w / 2**63
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def worst_error(way, drawn: np.ndarray) -> float:
    """Over all pairs: the error of a normal, in units of 1 + |z|."""
    workspace = way(len(drawn))
    workspace.words[:] = drawn
    got = np.asarray(workspace.normals(len(drawn), 1.0)).copy()
    pairs = len(drawn) // 2
    worst = 0.0
    for i in range(pairs):
        for z, right in zip(got[[i, pairs + i]], exactly(int(drawn[i]), int(drawn[pairs + i])), strict=True):
            worst = max(worst, float(abs(z - right) / (1 + abs(right))))
    return worst


@pytest.mark.parametrize("way", WAYS)
def test_normals_are_those_of_the_formula_to_float64s_precision(way):
    every = np.array([(v, w) for v in EDGES for w in EDGES], dtype=np.int64)
    assert worst_error(way, np.concatenate([every[:, 0], every[:, 1]])) < 1e-14
    assert worst_error(way, words(2_000)) < 1e-14


def test_twin_of_float32s_precision_is_seen():
    class Single(InTorch):
        def normals(self, count, std):
            return super().normals(count, std).float().double()

    assert worst_error(Single, words(200)) > 1e-14


def test_both_ways_draw_the_same():
    drawn = words(200_000)
    made = []
    for way in WAYS:
        workspace = way(len(drawn))
        workspace.words[:] = drawn
        made.append(np.asarray(workspace.normals(len(drawn) - 1, 250.0)).copy())
    np.testing.assert_allclose(*made, rtol=0, atol=250 * 1e-13)


def test_what_numpy_can_do_is_found_out():
    """With its vector instructions switched off, it is torch that computes: with the same noise up to rounding."""
    program = (
        "import torch\nfrom groupclip.noise import boxmuller\nfrom groupclip.noise import InsecureNoise\n"
        "x = torch.zeros(5, dtype=torch.float64)\nInsecureNoise(3).add_(x, 1.0)\nprint(boxmuller.vectorised(), *x.tolist())"
    )
    told, before = [], os.environ.get("NPY_DISABLE_CPU_FEATURES", "")
    for features in (before, " ".join(_dispatched())):
        environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features}
        out = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        told.append(out.stdout.split())
    assert told[0][0] == str(boxmuller.vectorised())
    assert told[1][0] == "False"
    np.testing.assert_allclose([float(z) for z in told[0][1:]], [float(z) for z in told[1][1:]], rtol=0, atol=1e-13)


def _dispatched() -> list[str]:
    """What this NumPy can be told to leave alone, of what this machine has."""
    functions = np.lib.introspect.opt_func_info(func_name="^(log|tan|exp|sin|cos)$")
    targets = [
        one for signatures in functions.values() for by in signatures.values() for one in by["available"].split()
    ]
    return sorted({one for one in targets if "baseline" not in one})


def test_farthest_draw():
    for way in WAYS:
        workspace = way(2)
        workspace.words[:] = [0, 0]
        assert np.asarray(workspace.normals(2, 1.0))[0] == pytest.approx(math.sqrt(126 * math.log(2)), rel=1e-15)
