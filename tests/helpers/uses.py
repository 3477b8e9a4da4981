"""Small networks, one for each way of using a parameter that a library for per-sample gradients may miss."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm as weight_normed


class UnevenConv1d(nn.Conv1d):
    """An even kernel with padding="same": one more zero on the right. Torch warns that it pads a copy."""

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
            return super().forward(x)


def conv1d() -> nn.Module:
    """x [B, 3, 9]."""
    return nn.Sequential(
        UnevenConv1d(3, 4, 4, padding="same"),
        nn.Tanh(),
        nn.Conv1d(4, 4, 3, stride=2, dilation=2, padding=2, groups=2, padding_mode="circular"),
        nn.Tanh(),
        nn.Conv1d(4, 2, 3, padding="valid"),
    )


def conv3d() -> nn.Module:
    """x [B, 2, 4, 5, 3]."""
    return nn.Sequential(
        nn.Conv3d(2, 4, (3, 2, 3), padding="same", dilation=(1, 2, 1)),
        nn.Tanh(),
        nn.Conv3d(4, 4, 2, stride=(1, 2, 1), padding=1, groups=4, padding_mode="replicate"),
    )


def norms() -> nn.Module:
    """x [B, 4, 6, 6]. Normalisations over each sample alone, with their weights and biases."""
    return nn.Sequential(
        nn.Conv2d(4, 4, 1, bias=False),  # a bias would vanish in the next layer, all but its rounding errors
        nn.InstanceNorm2d(4, affine=True),
        nn.Tanh(),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.LayerNorm((6, 6)),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(144, 6),
        nn.RMSNorm(6),
        nn.Tanh(),
        nn.LayerNorm(6, bias=False),
    )


def linear_4d() -> nn.Module:
    """x [B, 2, 3, 4]: three dimensions between sample and feature."""
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))


def frozen_halves() -> nn.Module:
    """x [B, 5]: a frozen weight, a frozen bias, a frozen layer between layers that train."""
    model = nn.Sequential(
        nn.Linear(5, 5),
        nn.LayerNorm(5),
        nn.Tanh(),
        nn.Linear(5, 5),
        nn.Tanh(),
        nn.Linear(5, 4),
        nn.Linear(4, 3),
    )
    for name in ("0.weight", "1.bias", "3.weight", "3.bias", "5.bias"):
        model.get_parameter(name).requires_grad_(False)
    return model


def multihead_attention() -> nn.Module:
    """x [B, 5, 4]. Torch's own: the in-projection is a bare parameter, out_proj is used by the function."""
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True)


def weight_norm() -> nn.Module:
    """x [B, 5]: the weight is computed from two parameters, without the batch."""
    return nn.Sequential(weight_normed(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3))


class Paddings(nn.Module):
    """ids [B, T]: id 0 is padding and gets no gradient; another table is looked up with the same ids."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=0)
        self.more = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(ids) + self.more(ids)))


class Reused(nn.Module):
    """x [B, T, 4]: one layer thrice, on sequences of different lengths, and its weight once more alone."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.shared(self.norm(x)))
        x = torch.tanh(self.shared(self.norm(x[:, 1:])))
        return self.head(F.linear(self.shared(x.mean(1)), self.shared.weight))


class Unused(nn.Module):
    """x [B, 4]: a branch that no sample reaches, and one whose result is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.ignored = nn.Linear(4, 2)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        self.ignored(x)
        return self.last(x)


class Matrices(nn.Module):
    """x [B, T, 4]: bare parameters in matrix products, on either side, through ``@``, addmm and matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.right = nn.Parameter(torch.zeros(4, 5))
        self.bias = nn.Parameter(torch.zeros(5))
        self.left = nn.Parameter(torch.zeros(6, 5))
        self.transposed = nn.Parameter(torch.zeros(3, 6))
        self.product = nn.Parameter(torch.zeros(3, 4))
        self.offset = nn.Parameter(torch.zeros(4))
        self.vector = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.right + self.bias)  # [B, T, 5]
        x = torch.tanh(self.left @ x.transpose(1, 2))  # [B, 6, T]
        x = torch.matmul(x.transpose(1, 2), self.transposed.t())  # [B, T, 3]
        x = torch.addmm(self.offset, x.mean(1), self.product)  # [B, 4]
        return torch.stack([x @ self.vector, x.sum(1)], dim=1)


class Broadcasts(nn.Module):
    """x [B, T, 4]: sum, difference, product, quotient with parameters of fewer dimensions, on either side."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.0))
        self.shift = nn.Parameter(torch.zeros(5, 1))
        self.scale = nn.Parameter(torch.ones(1, 5, 4))
        self.divisor = nn.Parameter(torch.full((4,), 2.0))
        self.target = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x + self.shift) * self.scale
        x = self.target - x / self.divisor
        return self.head(x).mean(1) * self.temperature.exp()


class OnParameters(nn.Module):
    """x [B, 4]: operations on parameters alone before they meet the batch: 1 + w, masks, cat, a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.zeros(4))
        self.halves = nn.ParameterList([nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(3, 4))])
        self.table = nn.Parameter(torch.zeros(6, 5))
        self.register_buffer("mask", torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1]]))

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.first.weight * self.mask, self.first.bias)
        x = torch.tanh(x) * (1 + self.gain)
        x = x @ torch.cat(list(self.halves)).t()  # [B, 5]
        return x + self.table[:4].mean(0)


class Flattened(nn.Module):
    """ids [B, T]: layers see [B*T, ...], sample by sample; each sample keeps to its own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.words(ids.flatten())))).view(*ids.shape, 3)


class Rare(nn.Module):
    """x [B, 4, 6]: operations that no library writes a rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 3, 3, stride=2)
        self.activation = nn.PReLU(3)
        self.pairs = nn.Bilinear(3, 3, 2)
        self.mixer = nn.Parameter(torch.zeros(2, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.up(x)).transpose(1, 2)  # [B, 13, 3]
        return self.pairs(x, torch.tanh(x)) + torch.einsum("btp,kpr->btr", x, self.mixer)


class Recurrent(nn.Module):
    """x [B, T, 4]: layers that hide their products behind one operation, samples second, and a cell at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LSTM(4, 3, num_layers=2, bidirectional=True)
        self.cell = nn.GRUCell(6, 4)
        self.parts = nn.Parameter(torch.zeros(9, 4))

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.net(x.transpose(0, 1))
        state = None
        for step in x.unbind(0):
            state = self.cell(step, state)
        gate, up, down = self.parts.chunk(3)
        return torch.tanh(F.linear(state, gate)) * F.linear(state, up) + F.linear(state, down)


class Counted(nn.Module):
    """ids [B, T]: a bag of words in a table that is the head too, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(7, 4, mode="mean", padding_idx=0)
        self.bend = nn.PReLU(4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.bend(self.words(ids)) @ self.words.weight.t()
