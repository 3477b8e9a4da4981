"""Linear models and multi-layer perceptrons: on the pixels of an image, or on the words of a text in no order."""

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


def _words(table: nn.Embedding, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sums ``[B, D]`` of the vectors of a text's words, and their numbers ``[B, 1]``, at least 1; id 0 is padding.

    Padding is masked, though its gradient is zero: noise moves every row of a table, that of padding too, and a short text
    has more padding than words.
    """
    words = (ids != 0).unsqueeze(2)  # [B, T, 1]
    return (table(ids) * words).sum(1), words.sum(1).clamp(min=1)


class ImageMLP(nn.Module):
    """Images ``[B, C, H, W]`` to logits ``[B, num_classes]``: flatten, then two hidden layers."""

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = _layers(math.prod(input_shape), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


class LinearModel(nn.Module):
    """Logistic regression on pixels ``[B, C, H, W]`` or features ``[B, D]``, to logits ``[B, num_classes]``; starts at zero.

    Features have no bias, for the reason that words have none (:class:`TextLinear`).
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(input_shape), num_classes, bias=len(input_shape) > 1)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class TextLinear(nn.Module):
    """Logistic regression on the words of a text: token ids ``[B, T]``, 0 for padding, to logits ``[B, num_classes]``.

    Every id has one weight a class, and a text's weights are added up and divided by the square root of their number: its
    word counts have length 1, or nearly. There is no bias: it would be part of every text's gradient, so that the noise and
    the clipping of all words would follow how frequent the classes are, and an ordinary word does its work. Starts at zero.
    """

    def __init__(self, *, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, num_classes, padding_idx=0)
        nn.init.zeros_(self.embed.weight)

    def forward(self, ids: Tensor) -> Tensor:
        total, length = _words(self.embed, ids)
        return total / length.sqrt()  # an empty text has equal logits


class TextMLP(nn.Module):
    """Token ids ``[B, T]``, 0 for padding, to logits ``[B, num_classes]``: mean vector, two hidden layers."""

    def __init__(self, *, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WORD_DIM, padding_idx=0)
        self.layers = _layers(WORD_DIM, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        total, length = _words(self.embed, ids)
        return self.layers(total / length)  # an empty text has a zero mean
