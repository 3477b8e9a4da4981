"""Names to models."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from .cnn import Activation, SmallCNN
from .mlp import ImageMLP, LinearModel, TextLinear, TextMLP
from .text import TextEncoder
from .vit import VIT_SHAPES, VisionTransformer

Kind = Literal["image", "text", "features"]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Says what a model's name stands for.

    kinds: the tasks it can be built for.
    options: keywords of :func:`build_model` that mean something to it.
    input_shape, num_classes: what it is built for when no task says otherwise (ViTs: as in the paper).
    """

    name: str
    summary: str
    kinds: tuple[Kind, ...]
    options: tuple[str, ...] = ()
    input_shape: tuple[int, ...]
    num_classes: int


def _vit(name: str, input_shape: tuple[int, ...], num_classes: int) -> ModelSpec:
    shape = VIT_SHAPES[name]
    return ModelSpec(
        name=name,
        summary=f"vision transformer: width {shape.dim}, {shape.depth} blocks, {shape.heads} heads",
        kinds=("image",),
        options=("patch_size", "image_size"),
        input_shape=input_shape,
        num_classes=num_classes,
    )


MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _vit("vit-micro", (1, 8, 8), 10),
        *(_vit(name, (3, 224, 224), 1000) for name in ("vit-tiny", "vit-small", "vit-base", "vit-large")),
        ModelSpec(
            name="cnn-small", summary="two or three stages of convolution, GroupNorm and pooling",
            kinds=("image",), options=("activation",), input_shape=(3, 32, 32), num_classes=10,
        ),
        ModelSpec(
            name="mlp", summary="two hidden layers of 256, on pixels, features or the mean word vector",
            kinds=("image", "text", "features"), input_shape=(1, 28, 28), num_classes=10,
        ),
        ModelSpec(
            name="linear", summary="logistic regression on pixels, or on the words or features of a text",
            kinds=("image", "text", "features"),
            input_shape=(1, 28, 28), num_classes=10,
        ),
        ModelSpec(
            name="text-small", summary="transformer encoder on token ids: width 128, 4 blocks, 4 heads",
            kinds=("text",), input_shape=(64,), num_classes=2,
        ),
    )
}  # fmt: skip


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int | None = None,
    patch_size: int | None = None,
    image_size: int | None = None,
    activation: Activation | None = None,
    seed: int | None = None,
) -> nn.Module:
    """Build a model for inputs of ``input_shape``, (C, H, W), (T,) or (D,), as a task states it.

    Args:
        vocabulary: number of token ids; needed for text as token ids. Without it ``(D,)`` is D features.
        patch_size: side of a ViT's patches in pixels; by default chosen from the image size.
        image_size: side that a ViT resizes images to before it works on them; by default it doesn't resize.
        activation: of cnn-small, ``relu`` (default) or ``tanh``.
        seed: of the initial weights, which are public. By default torch's global generator is used.

    Returns:
        A module whose forward maps ``[B, *input_shape]`` to logits ``[B, num_classes]``.

    Raises:
        ValueError: unknown name, a model that isn't for this kind of input, an option that means nothing to it.
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"unknown model '{name}'; {hint}Models: {', '.join(MODELS)}")
    spec = MODELS[name]
    kind = _kind(input_shape, vocabulary)
    if kind not in spec.kinds:
        fit = ", ".join(other.name for other in MODELS.values() if kind in other.kinds)
        raise ValueError(f"model '{name}' is for {spec.kinds[0]} input, not {kind}; models for {kind}: {fit}")
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes} must be at least 2")
    if kind == "image" and vocabulary is not None:
        raise ValueError(f"vocabulary={vocabulary} doesn't fit image input: text needs it, images have none")
    given = {"patch_size": patch_size, "image_size": image_size, "activation": activation}
    for option, value in given.items():
        if value is not None and option not in spec.options:
            raise ValueError(f"{option}={value} means nothing to model '{name}'; "
                             f"its options: {', '.join(spec.options) or 'none'}")  # fmt: skip
    if activation not in (None, "relu", "tanh"):
        raise ValueError(f"activation={activation!r} must be 'relu' or 'tanh'")
    # forked, so that asking for a seed doesn't set everyone else's
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        if len(input_shape) == 1 and vocabulary is not None:
            return _build_text(name, input_shape[0], num_classes, vocabulary)
        return _build_image(name, input_shape, num_classes, patch_size, image_size, activation or "relu")


def _kind(input_shape: tuple[int, ...], vocabulary: int | None) -> Kind:
    if len(input_shape) not in (1, 3) or min(input_shape) < 1:
        raise ValueError(f"input_shape={input_shape} must be (channels, height, width) or (tokens,)")
    if len(input_shape) == 3:
        return "image"
    return "features" if vocabulary is None else "text"


def _build_text(name: str, length: int, num_classes: int, vocabulary: int) -> nn.Module:
    if name == "linear":
        return TextLinear(vocabulary=vocabulary, num_classes=num_classes)
    if name == "mlp":
        return TextMLP(vocabulary=vocabulary, num_classes=num_classes)
    return TextEncoder(vocabulary=vocabulary, length=length, num_classes=num_classes)


def _build_image(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    patch_size: int | None,
    image_size: int | None,
    activation: Activation,
) -> nn.Module:
    if name == "linear":
        return LinearModel(input_shape=input_shape, num_classes=num_classes)
    if name == "mlp":
        return ImageMLP(input_shape=input_shape, num_classes=num_classes)
    channels, height, width = input_shape
    if name in VIT_SHAPES:
        return VisionTransformer(
            VIT_SHAPES[name],
            channels=channels,
            image_size=(height, width) if image_size is None else (image_size, image_size),
            num_classes=num_classes,
            patch_size=patch_size,
        )
    return SmallCNN(channels=channels, image_size=(height, width), num_classes=num_classes, activation=activation)
