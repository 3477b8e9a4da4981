"""The bare arithmetic of clipping over all layers: what is left when nothing is proven.

It takes row i of whatever a layer is given for sample i, has three kinds of layers, keeps every gradient of every sample, and
draws torch's noise. It is no way to train: it is the least that the tables of ``performance.py`` could show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = (nn.Linear, nn.LayerNorm, nn.Embedding)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: list[Any]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kept, ctx.bias = kept, bias
        return torch.ops.aten.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        rows, grads = (t.reshape(t.shape[0], -1, t.shape[-1]) for t in (x, g))
        ctx.kept.append((weight, torch.bmm(grads.transpose(1, 2), rows)))
        if ctx.bias is not None:
            ctx.kept.append((ctx.bias, grads.sum(1)))
        return g @ weight, None, None, None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float, kept: list[Any]) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, mean, scale, weight, bias)
        ctx.kept, ctx.shape = kept, shape
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, mean, scale, weight, bias = ctx.saved_tensors
        ctx.kept.append((weight, (g * ((x - mean) * scale)).sum(1)))
        ctx.kept.append((bias, g.sum(1)))
        backward = torch.ops.aten.native_layer_norm_backward
        return backward(g, x, ctx.shape, mean, scale, weight, bias, [True, False, False])[0], *[None] * 5


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, which: Tensor, weight: Tensor, padding: int, kept: list[Any]) -> Tensor:
        ctx.save_for_backward(which, weight)
        ctx.kept, ctx.padding = kept, padding
        return torch.ops.aten.embedding(weight, which)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        which, weight = ctx.saved_tensors
        if len(g) > len(which):  # positions, which all samples share
            raise NotImplementedError("positions that are expanded after the embedding")
        grads = g.new_zeros(len(g), *weight.shape)
        grads.scatter_add_(1, which.unsqueeze(-1).expand(g.shape), g)
        if ctx.padding >= 0:
            grads[:, ctx.padding] = 0
        ctx.kept.append((weight, grads))
        return None, None, None, None


def bare(model: nn.Module, losses: Callable[[], Tensor], step: Callable[[], None], noise: float) -> Callable[[], None]:
    """Return a whole step on the model.

    Args:
        model: its layers with parameters are linear, layer norms and embeddings, and all of them are trained.
        losses: computes those of the batch, ``[B]``.
        step: of an optimizer, and ``zero_grad``.
        noise: standard deviation, at a threshold of 1.

    Raises:
        NotImplementedError: the model has other layers.
    """
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if own and (type(module) not in LAYERS or not all(p.requires_grad for p in own)):
            raise NotImplementedError(f"{type(module).__name__} isn't among the layers of the bare way, or it is frozen")

    def whole() -> None:
        kept: list[tuple[nn.Parameter, Tensor]] = []
        with _keeping(kept):
            found = losses()
        found.sum().backward()
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for _, g in kept]).square().sum(dim=0).sqrt()
        factors = (1 / (norms + 1e-12)).clamp(max=1.0)
        for weight, grads in kept:
            total = (factors @ grads.flatten(1)).view(weight.shape)
            weight.grad = total if weight.grad is None else weight.grad + total
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad.add_(torch.randn_like(p.grad), alpha=noise).div_(len(found))
        step()

    return whole


@contextmanager
def _keeping(kept: list[Any]) -> Iterator[None]:
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _Linear.apply(x, weight, bias, kept)  # pyright: ignore[reportReturnType]

    def layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        return _LayerNorm.apply(x, shape, weight, bias, eps, kept)  # pyright: ignore[reportReturnType]

    def embedding(which: Tensor, weight: Tensor, padding: int | None = None, *_: Any) -> Tensor:
        return _Embedding.apply(which, weight, -1 if padding is None else padding, kept)  # pyright: ignore[reportReturnType]

    before = F.linear, F.layer_norm, F.embedding
    F.linear, F.layer_norm, F.embedding = linear, layer_norm, embedding  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        F.linear, F.layer_norm, F.embedding = before  # pyright: ignore[reportAttributeAccessIssue]
