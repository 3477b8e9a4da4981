"""Settings that work, by task: what a run takes where a person said nothing. Data, not code.

No recipe has an epsilon: how much privacy to spend is the person's decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Defaults of one task; ``RunConfig`` says what they mean."""

    model: str
    clipping: str
    batch_size: int
    epochs: float
    lr: float
    optimizer: str = "adamw"
    schedule: str = "constant"
    momentum: float = 0.9
    weight_decay: float = 0.0
    microbatch: int = 64


RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        model="vit-micro", clipping="uniform:2", batch_size=256, epochs=40, lr=2e-3, microbatch=256
    ),
    "mnist": Recipe(model="cnn-small", clipping="layer-wise", batch_size=1024, epochs=10, lr=2e-3),
    "fashion-mnist": Recipe(model="cnn-small", clipping="layer-wise", batch_size=1024, epochs=10, lr=2e-3),
    "imagefolder": Recipe(model="cnn-small", clipping="layer-wise", batch_size=256, epochs=20, lr=2e-3),
    "csv": Recipe(model="text-small", clipping="block-wise", batch_size=256, epochs=20, lr=1e-3),
}
FALLBACK: dict[Literal["image", "text"], Recipe] = {"image": RECIPES["imagefolder"], "text": RECIPES["csv"]}
EVALUATIONS = 20  # at most that many in a run
