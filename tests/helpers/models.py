"""A catalogue of small models, each with batches for it and its loss per sample.

An entry is the same for everyone who asks: weights and batches come from seeds, in float32, and are cast. So
an engine in float32 and the oracle in float64 see the same numbers. No weight or bias is left at zero or one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uses
from networks import CNN, GPT, MLP, ViT

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Entry:
    """``model()`` -> a fresh model, ``batch(B)`` -> a batch for it; ``losses(model, batch)`` -> [B]."""

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Batch]
    losses: Callable[[nn.Module, Batch], Tensor]
    core: bool = False

    def model(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.build()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(0.1 * torch.randn(p.shape))
        return model.to(dtype)

    def batch(self, size: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Batch:
        drawn = self.draw(size, torch.Generator().manual_seed(seed))
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in drawn)


def labelled(*shape: int, classes: int = 3) -> Callable[[int, torch.Generator], Batch]:
    """Batches of (x [B, *shape], labels [B])."""

    def draw(size: int, generator: torch.Generator) -> Batch:
        x = torch.randn(size, *shape, generator=generator)
        return x, torch.randint(classes, (size,), generator=generator)

    return draw


def numbers(*shape: int) -> Callable[[int, torch.Generator], Batch]:
    """Batches of (x [B, *shape],)."""
    return lambda size, generator: (torch.randn(size, *shape, generator=generator),)


def tokens(length: int, vocabulary: int) -> Callable[[int, torch.Generator], Batch]:
    """Batches of (ids [B, length]); few enough tokens that some come twice in a sample."""
    return lambda size, generator: (torch.randint(vocabulary, (size, length), generator=generator),)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, labels = batch
    return F.cross_entropy(model(x), labels, reduction="none")


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    """Mean over the sample's own tokens: no other sample's length enters."""
    (ids,) = batch
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def siamese(model: nn.Module, batch: Batch) -> Tensor:
    """The model twice before one backward pass: still one sample."""
    left, right = batch
    return 1 - F.cosine_similarity(model(left), model(right))


def pair(*shape: int) -> Callable[[int, torch.Generator], Batch]:
    return lambda size, generator: tuple(torch.randn(size, *shape, generator=generator) for _ in range(2))


def output_square(model: nn.Module, batch: Batch) -> Tensor:
    """A loss without labels: the mean square of the sample's output less 0.5, lest zero be special."""
    return (model(*batch) - 0.5).square().flatten(1).mean(1)


CORE = (
    Entry("mlp", MLP, labelled(5), classify, core=True),
    Entry("cnn-groupnorm", CNN, labelled(2, 8, 7), classify, core=True),
    Entry("vit", ViT, labelled(3, 8, 8), classify, core=True),
    Entry("gpt", GPT, tokens(7, GPT.VOCABULARY), next_token, core=True),
    Entry("gpt-tied", lambda: GPT(tied=True), tokens(7, GPT.VOCABULARY), next_token, core=True),
)

CATALOGUE = (
    *CORE,
    Entry("conv1d", uses.conv1d, numbers(3, 9), output_square),
    Entry("conv3d", uses.conv3d, numbers(2, 4, 5, 3), output_square),
    Entry("norms", uses.norms, numbers(4, 6, 6), output_square),
    Entry("linear-4d", uses.linear_4d, numbers(2, 3, 4), output_square),
    Entry("frozen-halves", uses.frozen_halves, labelled(5), classify),
    Entry("multihead-attention", uses.multihead_attention, numbers(5, 4), output_square),
    Entry("weight-norm", uses.weight_norm, labelled(5), classify),
    Entry("padding-idx", uses.Paddings, tokens(6, 7), output_square),
    Entry("reused", uses.Reused, numbers(4, 4), output_square),
    Entry("siamese", MLP, pair(5), siamese),
    Entry("unused", uses.Unused, labelled(4), classify),
    Entry("matrices", uses.Matrices, numbers(3, 4), output_square),
    Entry("broadcasts", uses.Broadcasts, numbers(5, 4), output_square),
    Entry("on-parameters", uses.OnParameters, numbers(4), output_square),
    Entry("flattened", uses.Flattened, tokens(5, 7), output_square),
    Entry("rare", uses.Rare, numbers(4, 6), output_square),
    Entry("recurrent", uses.Recurrent, numbers(4, 4), output_square),
    Entry("counted", uses.Counted, tokens(5, 7), output_square),
)
