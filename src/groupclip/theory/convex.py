"""A convex problem on which every assumption of Theorem 1 holds exactly, trained by the real engine.

Loss of sample i: ``1/2 sum_j h_j (w_j - x_ij)^2``, the data in mirrored pairs x, -x. Then a per-sample gradient is
``h (w - x_i)``, that of the mean loss ``h w``, the noise ``-h x_i``: the same at every w and symmetric.
Coordinates come in blocks, and every block of every sample has noise of norm ``xi / sqrt(blocks)``, so that M equal groups of
blocks have ``xi / sqrt(M)`` each. The smoothness is ``max h = 1``; the least loss is at w = 0.

Batches are Poisson batches of a finite data set, not i.i.d. samples: the expected clipped sum is the same, and the second moment
is the paper's with ``batch_size_variance = B (1 - q)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..arguments import positive, whole
from ..clipping.functions import Automatic
from ..engine.attach import attach
from ..noise.sources import InsecureNoise
from ..privacy.mechanism import Mechanism
from ..sampling.batches import poisson_batches
from .bound import Setting
from .distance import Numbers

_BATCH, _SAMPLES = 64, 256


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """The problem: ``blocks`` of ``width`` coordinates each, gradient noise ``xi``, 256 samples; the start is at distance 1."""

    blocks: int = 4
    width: int = 8
    xi: float = 0.05

    def __post_init__(self) -> None:
        whole("blocks", self.blocks, least=1)
        whole("width", self.width, least=1)
        positive("xi", self.xi)

    @property
    def curvature(self) -> Tensor:
        """h ``[width]``, the same in every block: from 1 down to 1/2."""
        return torch.linspace(1.0, 0.5, self.width, dtype=torch.float64)

    @property
    def start(self) -> Tensor:
        """w_0 ``[blocks, width]``."""
        return torch.full((self.blocks, self.width), 1 / math.sqrt(self.blocks * self.width), dtype=torch.float64)

    def data(self) -> Tensor:
        """x ``[256, blocks, width]``, always the same."""
        source = torch.Generator().manual_seed(0)
        noise = torch.randn(_SAMPLES // 2, self.blocks, self.width, generator=source, dtype=torch.float64)
        noise *= self.xi / math.sqrt(self.blocks) / noise.norm(dim=2, keepdim=True)
        return torch.cat([noise, -noise]) / self.curvature

    def setting(self, *, steps: int, noise_multiplier: float = 1.0, rho: float = 0.2, gamma: float = 0.05) -> Setting:
        """Return the bound's arguments, all known exactly here."""
        return Setting(
            steps=steps, batch_size=_BATCH, noise_multiplier=noise_multiplier, parameters=self.blocks * self.width,
            gap=float((self.curvature * self.start.square()).sum() / 2), smoothness=1.0, xi=self.xi, rho=rho, gamma=gamma,
            batch_size_variance=_BATCH * (1 - _BATCH / _SAMPLES),
        )  # fmt: skip


class _Model(nn.Module):
    """``[B, blocks, width]`` -> losses ``[B]``."""

    def __init__(self, problem: Quadratic) -> None:
        super().__init__()
        self.curvature = problem.curvature
        self.block = nn.ParameterList(nn.Parameter(row.clone()) for row in problem.start)

    def forward(self, x: Tensor) -> Tensor:
        losses = [(self.curvature * (w - x[:, k]).square()).sum(1) for k, w in enumerate(self.block)]
        return torch.stack(losses, 1).sum(1) / 2

    def gradient_norms(self, groups: int) -> Numbers:
        """Return ``[M]`` norms of the mean loss's gradient, which is ``h w``."""
        with torch.no_grad():
            squares = torch.stack([(self.curvature * w).square().sum() for w in self.block])
        return squares.reshape(groups, -1).sum(1).sqrt().numpy()


def gradient_norms(problem: Quadratic, setting: Setting, groups: int, seed: int) -> Numbers:
    """Train once by DP-SGD with automatic clipping at the bound's learning rate; the norms ``[T, M]`` before every step.

    Args:
        setting: of ``problem.setting``.
        groups: M; must divide the number of blocks.
        seed: of batches and noise: the same seed gives the same run, which is therefore NOT private.
    """
    if problem.blocks % whole("groups", groups, least=1):
        raise ValueError(f"groups={groups} must divide blocks={problem.blocks}: the groups are to be alike")
    model = _Model(problem)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.learning_rate)
    engine = attach(
        model,
        optimizer,
        {f"block.{k}": f"group-{k * groups // problem.blocks}" for k in range(problem.blocks)},
        mechanism := Mechanism(
            dataset_size=_SAMPLES,
            expected_batch_size=_BATCH,
            steps=setting.steps,
            noise_multiplier=setting.noise_multiplier,
        ),
        clip=Automatic(gamma=setting.gamma),
        noise=InsecureNoise(seed),
    )
    found = []
    key = whole("seed", seed, least=0).to_bytes(32, "big")
    for batch in poisson_batches(list(problem.data()), mechanism, microbatch=_SAMPLES, key=key, collate=torch.stack):
        found.append(model.gradient_norms(groups))
        for x in batch:
            engine.backward(model(x))
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()
    return np.stack(found)


def least_quantile(runs: Sequence[Numbers], rho: float) -> float:
    """Return the least b with ``max over t of the share of runs with ||g_t|| <= b`` at least 1 - rho: what the theorem bounds.

    Args:
        runs: norms ``[T, M]`` of several runs.
    """
    norms = np.sort(np.stack([np.sqrt((run**2).sum(1)) for run in runs]), axis=0)  # [S, T]
    return float(norms[math.ceil((1 - rho) * len(runs) - 1e-9) - 1].min())
