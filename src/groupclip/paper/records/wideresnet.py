"""WRN-16-4 as De et al. 2022 train it: weight standardisation and group normalisation in the place of batch normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEPTH, WIDEN = 16, 4
_GROUPS = 16  # of channels, in every normalisation
_LEAST = 1e-4  # under the root of a variance


class _Conv(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 / fan-in each, times a gain that is learnt (Qiao et al. 2019)."""

    def __init__(self, width: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(width, out, kernel, stride, padding=kernel // 2)
        self.gain = nn.Parameter(torch.ones(out, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        fan_in = self.weight[0].numel()
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        variance = self.weight.var((1, 2, 3), keepdim=True, correction=0)
        weight = (self.weight - mean) * torch.rsqrt((variance * fan_in).clamp(min=_LEAST)) * self.gain
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


class _Block(nn.Module):
    """Normalise, activate, convolve, twice; the way around is a convolution where widths differ."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(_GROUPS, width), nn.GroupNorm(_GROUPS, out)
        self.down, self.up = _Conv(width, out, 3, stride), _Conv(out, out, 3)
        self.around = _Conv(width, out, 1, stride) if width != out or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        around = x if self.around is None else self.around(y)
        return around + self.up(F.relu(self.second(self.down(y))))


class WideResNet(nn.Module):
    """Images ``[.., 3, H, W]``, with one dimension or more in front, to logits ``[.., classes]``.

    Args:
        depth: 6 n + 4, of n blocks at each of three scales. widen: times 16, 32 and 64 channels.
    """

    def __init__(self, classes: int, depth: int = DEPTH, widen: int = WIDEN) -> None:
        super().__init__()
        layers: list[nn.Module] = [_Conv(3, 16, 3)]
        width = 16
        for scale in range(3):
            for place in range((depth - 4) // 6):
                out = 16 * widen * 2**scale
                layers.append(_Block(width, out, 2 if scale and not place else 1))
                width = out
        self.layers = nn.Sequential(*layers, nn.GroupNorm(_GROUPS, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(self.layers(x.flatten(0, -4)).mean((2, 3)))
        return found.unflatten(0, x.shape[:-3])
