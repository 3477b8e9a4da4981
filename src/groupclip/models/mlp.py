"""Multi-layer perceptrons: on the pixels of an image, or on the mean of a text's word vectors."""

import math

from torch import Tensor, nn

HIDDEN = 256
WORD_DIM = 64


def _layers(inputs: int, num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, num_classes),
    )


class ImageMLP(nn.Module):
    """Images ``[B, C, H, W]`` to logits ``[B, num_classes]``: flatten, then two hidden layers."""

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = _layers(math.prod(input_shape), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


class LinearModel(nn.Module):
    """Logistic regression on pixels ``[B, C, H, W]``, to logits ``[B, num_classes]``; starts at zero."""

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(input_shape), num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class TextMLP(nn.Module):
    """Token ids ``[B, T]``, 0 for padding, to logits ``[B, num_classes]``: mean vector, two hidden layers."""

    def __init__(self, *, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WORD_DIM, padding_idx=0)
        self.layers = _layers(WORD_DIM, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        length = (ids != 0).sum(1, keepdim=True).clamp(min=1)  # [B, 1]; an empty text has a zero mean
        return self.layers(self.embed(ids).sum(1) / length)  # padding has a zero vector
