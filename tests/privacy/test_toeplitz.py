"""Coefficients of banded Toeplitz matrices, held against jax_privacy's (numbers in a JSON, with their source) and matrices."""

import json
from pathlib import Path

import numpy as np
import pytest

from groupclip.privacy.toeplitz import LONGEST, coefficients, column_norm, inverse, prefix_error

REFERENCE = json.loads((Path(__file__).parent / "toeplitz-reference.json").read_text())
ROWS = {f"{row['steps']}-{row['bands']}": row for row in REFERENCE["rows"]}


def matrix(column, steps: int) -> np.ndarray:
    """C, written out."""
    full = np.zeros((steps, steps))
    for k, entry in enumerate(column):
        full += entry * np.eye(steps, k=-k)
    return full


@pytest.mark.parametrize("name", ROWS)
def test_equals_jax_privacy(name):
    row = ROWS[name]
    column = coefficients(row["steps"], row["bands"])
    assert np.abs(np.array(column) - row["coefficients"]).max() < 1e-6
    assert column_norm(column) == pytest.approx(row["column_norm"], abs=1e-6)
    assert prefix_error(column, row["steps"]) ** 2 == pytest.approx(row["mean_squared_error"], rel=1e-6)
    assert inverse(column, len(row["inverse"])) == pytest.approx(row["inverse"], abs=1e-6)


def test_the_reference_tells_apart():
    row = ROWS["64-4"]
    assert np.abs(np.array(coefficients(63, 4)) - row["coefficients"]).max() > 1e-5


@pytest.mark.parametrize(("steps", "bands"), [(1, 1), (5, 1), (7, 3), (40, 8), (6, 6)])
def test_against_matrices(steps, bands):
    column = coefficients(steps, bands)
    full = matrix(column, steps)
    assert len(column) == bands
    norms = np.linalg.norm(full, axis=0)
    assert norms.max() == pytest.approx(1.0, abs=1e-12) and norms.max() == pytest.approx(column_norm(column), abs=1e-12)
    noise_of_sums = np.tril(np.ones((steps, steps))) @ np.linalg.inv(full)
    assert prefix_error(column, steps) == pytest.approx(np.sqrt((noise_of_sums**2).sum() / steps), rel=1e-10)
    assert inverse(column, steps) == pytest.approx(np.linalg.inv(full)[:, 0], abs=1e-10)


def test_columns_of_steps_that_are_bands_apart_do_not_overlap():
    bands, steps = 4, 19
    full = matrix(coefficients(steps, bands), steps)
    meetings = np.abs(full.T @ full)
    assert all(meetings[i, j] == 0 for i in range(steps) for j in range(steps) if abs(i - j) >= bands)
    assert meetings[0, bands - 1] > 0  # a step less apart, they do


@pytest.mark.parametrize(("steps", "bands"), [(60, 5), (300, 12)])
def test_no_change_of_one_coefficient_makes_it_better(steps, bands):
    column = np.array(coefficients(steps, bands))
    best = prefix_error(tuple(column), steps)
    for k in range(bands):
        for change in (-1e-3, 1e-3):
            other = column.copy()
            other[k] += change
            assert prefix_error(tuple(other / np.linalg.norm(other)), steps) > best


def test_one_band_is_independent_noise():
    assert coefficients(100, 1) == (1.0,)
    assert prefix_error((1.0,), 3) ** 2 == pytest.approx((1 + 2 + 3) / 3)


def test_more_bands_than_steps_are_as_many_as_steps():
    assert coefficients(3, 8) == coefficients(3, 3)


def test_very_long_runs_take_the_coefficients_of_shorter_ones():
    assert coefficients(10 * LONGEST, 4) == coefficients(LONGEST, 4)
    assert column_norm(coefficients(10 * LONGEST, 4)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ROWS)
def test_jax_privacy_gives_the_same_today(name):
    """Runs where jax_privacy is installed: its numbers are computed anew."""
    jax = pytest.importorskip("jax")
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    jax.config.update("jax_enable_x64", True)
    row = ROWS[name]
    column = toeplitz.optimize_banded_toeplitz(row["steps"], row["bands"], max_optimizer_steps=2000)
    assert np.abs(np.asarray(column) - coefficients(row["steps"], row["bands"])).max() < 1e-6
