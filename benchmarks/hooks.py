"""Live bytes of Book-Keeping made of module hooks, as the paper's library has it: to explain its Table 2.

That library (awslabs/fast-differential-privacy, fastDP/autograd_grad_sample.py at 306ce6a, supported_layers_grad_samplers.py
at 007e7a3) keeps more than groupclip: of every linear and normalisation layer and embedding the input and a scaled COPY of
the output gradient live until the group ends; and an embedding's clipped gradient is a product with the one-hot ids,
``[B, T, V]``, first of int64 and then of floats. The last two can be left out here. The passes are made on meta tensors.

Legend: B samples, T positions, V rows of an embedding, a inputs and g output gradients of layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupclip.memory.live import Live
from groupclip.memory.sketch import blank_model, sketching
from groupclip.memory.workload import default_loss
from groupclip.nested import tensors_in


@dataclass(frozen=True)
class Keeps:
    """norms: inputs and output gradients of normalisation layers too. one_hot: embeddings by a product with one-hot ids."""

    norms: bool = True
    one_hot: bool = True


class Hooks:
    """Books every layer of ``model``, and ends a group when all of its layers that ran have been passed backwards."""

    def __init__(self, model: nn.Module, group_of: Mapping[str, str], keeps: Keeps) -> None:
        self.keeps = keeps
        self.kept: dict[str, dict[nn.Module, tuple[Tensor, Tensor]]] = {group: {} for group in group_of.values()}
        self.inputs: dict[nn.Module, Tensor] = {}
        self.awaited = dict.fromkeys(self.kept, 0)
        self.sums: list[Tensor] = []  # clipped gradients, beside those that autograd makes
        for name, layer in model.named_modules():
            group = group_of.get(f"{name}.weight")
            if group is not None and isinstance(layer, (nn.Linear, nn.Conv2d, nn.LayerNorm, nn.Embedding)):
                layer.register_forward_hook(self._booking(group))

    def _booking(self, group: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.inputs[layer] = inputs[0].detach()  # not in the closure: a graph keeps that to the end of the pass
            self.awaited[group] += 1
            output.register_hook(lambda g: self._book(group, layer, g.detach()))

        return hook

    def _book(self, group: str, layer: nn.Module, g: Tensor) -> None:
        a = self.inputs.pop(layer)
        g = g * len(g)  # of the mean loss: a copy
        if isinstance(layer, nn.LayerNorm):
            samples = (F.layer_norm(a, layer.normalized_shape) * g).flatten(1, -2).sum(dim=1)
            self.kept[group][layer] = (a, g) if self.keeps.norms else (samples, samples)
        else:
            if not isinstance(layer, nn.Embedding):
                x, y = _rows(layer, a, g)
                norms = torch.bmm(x, x.mT) * torch.bmm(y, y.mT)
                del norms, x, y
            self.kept[group][layer] = (a, g)
        self.awaited[group] -= 1
        if self.awaited[group] == 0:
            self._close(group)

    def _close(self, group: str) -> None:
        """Clipped sums from the bottom layer up: the embeddings come first, while all else is still kept."""
        kept = self.kept[group]
        for layer in reversed(list(kept)):
            a, g = kept.pop(layer)
            weighted = g * 1.0
            if isinstance(layer, nn.Embedding):
                if self.keeps.one_hot:
                    ids = torch.empty(*a.shape, layer.num_embeddings, dtype=torch.int64, device=a.device)
                    ones = ids.to(g.dtype)
                    del ids
                    total = ones.flatten(0, -2).mT @ weighted.expand(*a.shape, -1).flatten(0, -2)
                    del ones
                else:
                    total = torch.empty_like(layer.weight)
            elif isinstance(layer, nn.LayerNorm):
                total = torch.empty_like(layer.weight)
            else:
                x, y = _rows(layer, a, weighted)
                total = y.flatten(0, 1).mT @ x.flatten(0, 1)
                del x, y
            self.sums.append(total)
            del a, g, weighted, total


def _rows(layer: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs ``[B, T, d]`` and output gradients ``[B, T, p]``."""
    if isinstance(layer, nn.Conv2d):
        a = F.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT  # pyright: ignore[reportArgumentType]
        return a, g.flatten(2).mT
    if a.dim() == 2:
        return a.unsqueeze(1), g.unsqueeze(1)
    return a, g


def peak(model: nn.Module, batch: Any, group_of: Mapping[str, str] | None, keeps: Keeps) -> int:
    """Most bytes beside parameters and batch in one pass; ``group_of`` maps parameters to groups, None is plain training."""
    twin = blank_model(model)
    hooks = None if group_of is None else Hooks(twin, group_of, keeps)
    with sketching(torch.device("cpu")), Live([*twin.parameters(), *twin.buffers(), *tensors_in(batch)]) as live:
        default_loss(twin, batch).mean().backward()
    if hooks is not None:
        assert not any(hooks.awaited.values())
        assert len(hooks.sums) > 0
    return live.peak


def numbers(model: nn.Module) -> int:
    return sum(math.prod(p.shape) for p in model.parameters())
