"""The paper's group-wise clipping, one sample at a time: slow, plain, and independent of groupclip.

For each sample i and each group m (equation 1 without the noise, per group as in the introduction):

    g_i^(m) = dL_i / dW^(m),        G^(m) = sum_i g_i^(m) C(||g_i^(m)||; R_m)

with the automatic C of equation 4, or another by name. Every gradient comes from torch.autograd on a batch of
one sample, in float64, on a copy of the model; nothing of groupclip is imported.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
Losses = Callable[[nn.Module, Batch], Tensor]


def automatic(norm: float, threshold: float) -> float:
    """AUTO-S, equation 4: every sample is normalised, gamma = 0.01."""
    return threshold / (norm + 0.01)


def abadi(norm: float, threshold: float) -> float:
    return 1.0 if norm <= threshold else threshold / norm


def flat_normalised(norm: float, threshold: float) -> float:
    """AUTO-V: as automatic with gamma = 0; a zero gradient has no direction and stays zero."""
    return 0.0 if norm == 0 else threshold / norm


def global_(norm: float, threshold: float) -> float:
    return 1.0 if norm <= threshold else 0.0


CLIP = {"automatic": automatic, "abadi": abadi, "flat-normalised": flat_normalised, "global": global_}


@dataclass(frozen=True)
class Reference:
    """``norms``: group -> [B] norms of the per-sample group gradients, inf or nan as they come out;
    ``sums``: parameter name -> sum over samples of clipped gradients, shaped as the parameter. All float64.
    """

    norms: dict[str, Tensor]
    sums: dict[str, Tensor]


def per_sample_gradients(model: nn.Module, losses: Losses, batch: Batch) -> list[dict[str, Tensor]]:
    """For each sample, parameter name -> gradient of its loss alone; zeros where it doesn't reach."""
    model = copy.deepcopy(model).double()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
    samples = []
    for i in range(len(batch[0])):
        loss = losses(model, tuple(t[i : i + 1] for t in batch))
        assert loss.shape == (1,), f"one loss per sample, not {tuple(loss.shape)}"
        gradients = torch.autograd.grad(loss[0], list(parameters.values()), allow_unused=True)
        samples.append(
            {
                name: torch.zeros_like(p) if g is None else g
                for (name, p), g in zip(parameters.items(), gradients, strict=True)
            }
        )
    return samples


def clipped_sum(
    model: nn.Module,
    losses: Losses,
    batch: Batch,
    groups: Mapping[str, Sequence[str]],
    clip: str = "automatic",
    thresholds: Mapping[str, float] | None = None,
) -> Reference:
    """Clip each sample's gradient group by group and add up the samples.

    Args:
        model: not attached to an engine; left as it is.
        losses: (model, batch) -> [B].
        batch: tensors whose first dimension is the sample; may hold no sample.
        groups: group -> names of its parameters, together all trainable ones.
        clip: a key of ``CLIP``.
        thresholds: group -> R_m; R/sqrt(M) with R = 1 if absent (section "Clipping thresholds").

    A group gradient that isn't finite adds exactly zero to its group.
    """
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    return clipped(per_sample_gradients(model, losses, batch), shapes, groups, clip, thresholds)


def clipped(
    samples: Sequence[Mapping[str, Tensor]],
    shapes: Mapping[str, torch.Size],
    groups: Mapping[str, Sequence[str]],
    clip: str = "automatic",
    thresholds: Mapping[str, float] | None = None,
) -> Reference:
    """The same, from the gradients of each sample and the shapes of the trainable parameters."""
    if thresholds is None:
        thresholds = dict.fromkeys(groups, 1 / math.sqrt(len(groups)))
    assert sorted(shapes) == sorted(name for names in groups.values() for name in names)
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    norms: dict[str, list[float]] = {group: [] for group in groups}
    for gradients in samples:
        for group, names in groups.items():
            norm = math.sqrt(sum(gradients[name].square().sum().item() for name in names))
            norms[group].append(norm)
            if not math.isfinite(norm):
                continue
            factor = CLIP[clip](norm, thresholds[group])
            for name in names:
                sums[name] += factor * gradients[name]
    return Reference({group: torch.tensor(n, dtype=torch.float64) for group, n in norms.items()}, sums)
