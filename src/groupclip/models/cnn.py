"""A small convolutional network; group normalisation keeps samples apart where BatchNorm wouldn't."""

from typing import Literal

from torch import Tensor, nn

Activation = Literal["relu", "tanh"]
GROUPS = 8


class SmallCNN(nn.Module):
    """Images ``[B, C, H, W]`` of 4x4 pixels or more to logits ``[B, num_classes]``.

    Two stages for images below 16 pixels, else three; each is conv 3x3, GroupNorm, activation, 2x2 max-pool.
    activation: ``relu``, or ``tanh``, which Papernot et al. 2021 found better under noise.
    """

    def __init__(
        self, *, channels: int, image_size: tuple[int, int], num_classes: int, activation: Activation = "relu"
    ) -> None:
        super().__init__()
        short = min(image_size)
        if short < 4:
            found = f"{image_size[0]}x{image_size[1]}"
            raise ValueError(f"images of {found} are too small for cnn-small; 4x4 is the least")
        widths = (32, 64) if short < 16 else (32, 64, 64)
        stages: list[nn.Module] = []
        for width in widths:
            stages += [
                nn.Conv2d(channels, width, kernel_size=3, padding=1),
                nn.GroupNorm(GROUPS, width),
                nn.Tanh() if activation == "tanh" else nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            channels = width
        self.stages = nn.Sequential(*stages)
        side = 2 ** len(widths)
        self.head = nn.Linear(channels * (image_size[0] // side) * (image_size[1] // side), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(x).flatten(1))
