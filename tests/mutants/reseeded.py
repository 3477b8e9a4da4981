"""A pytest plugin that gives the statistical tests other keys and seeds than the ones fixed in them.

    PYTHONPATH=tests/mutants RESEED=7 python -m pytest -p reseeded tests/noise/test_sources.py

Every keyed stream of the package (noise, sampling), torch's and NumPy's seeded generators then begin elsewhere, by RESEED.
Tests that compare with known bytes of a key fail under it and aren't run so.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from groupclip.noise import keystream

RESEED = int(os.environ["RESEED"])

_derive_key, _manual_seed, _default_rng = keystream.derive_key, torch.manual_seed, np.random.default_rng


def derive_key(key: bytes, label: str) -> bytes:
    return _derive_key(_derive_key(key, label), f"reseeded {RESEED}")


def manual_seed(seed: int) -> Any:
    return _manual_seed(int(seed) + 1_000_003 * RESEED)


def default_rng(seed: Any = None) -> np.random.Generator:
    return _default_rng([seed, RESEED] if isinstance(seed, int) else seed)


keystream.derive_key = derive_key
torch.manual_seed = manual_seed
np.random.default_rng = default_rng
