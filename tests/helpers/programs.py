"""Random programs over activations and parameters: every operation may meet every other, in any order.

Four kinds of value: ``x`` activations [B, T, d], ``v`` vectors [d], ``m`` matrices [d, d], ``t`` tables [T, d]. The
last three come from parameters alone (or are constants), so what they become is derived until it meets the batch. T and
d are small and meet the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn


def mean_shift(x: Tensor, v: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True) * v


#: name -> (kinds of the operands, kind of the result, function). Results stay of size one or so.
OPERATIONS: dict[str, tuple[str, str, Callable[..., Tensor]]] = {
    "x + v": ("xv", "x", lambda x, v: x + v),
    "v - x": ("vx", "x", lambda v, x: v - x),
    "x * v": ("xv", "x", lambda x, v: torch.tanh(x * v)),
    "x / v": ("xv", "x", lambda x, v: x / (1 + v * v)),
    "x + t": ("xt", "x", lambda x, t: x + t),
    "t * x": ("tx", "x", lambda t, x: torch.tanh(t * x)),
    "x @ m": ("xm", "x", lambda x, m: torch.tanh(x @ m)),
    "linear": ("xmv", "x", lambda x, m, v: torch.tanh(F.linear(x, m, v))),
    "m @ x": ("mx", "x", lambda m, x: torch.tanh(m @ x.mT).mT),
    "layer norm": ("xvv", "x", lambda x, v, w: torch.tanh(F.layer_norm(x, x.shape[-1:], v, w))),
    "rms norm": ("xv", "x", lambda x, v: torch.tanh(F.rms_norm(x, x.shape[-1:], v))),
    "x + x": ("xx", "x", lambda x, y: 0.5 * (x + y)),
    "x * x": ("xx", "x", lambda x, y: torch.tanh(x * y)),
    "attention": ("xxx", "x", F.scaled_dot_product_attention),
    "where": ("xv", "x", lambda x, v: torch.where(x > 0.1, x, v)),
    "mean shift": ("xv", "x", mean_shift),
    "sequence first": ("xm", "x", lambda x, m: torch.tanh(F.linear(x.transpose(0, 1), m)).transpose(0, 1)),
    "flattened": ("xm", "x", lambda x, m: torch.tanh(F.linear(x.flatten(0, 1), m)).view_as(x)),
    "token": ("xv", "x", lambda x, v: torch.cat([v.expand(len(x), 1, -1), x[:, 1:]], 1)),
    "half": ("xm", "x", lambda x, m: torch.cat([x[:, :1] @ m, x[:, 1:]], 1).tanh()),
    "pooled": ("xm", "x", lambda x, m: torch.tanh((x.mean(1) @ m).unsqueeze(1) + x)),
    "einsum": ("xm", "x", lambda x, m: torch.einsum("btd,de->bte", x, m).tanh()),
    "two views": ("xm", "x", lambda x, m: sum(torch.tanh(torch.cat([x, x.flip(1)]) @ m).chunk(2))),
    "v + v": ("vv", "v", lambda v, w: v + w),
    "v * v": ("vv", "v", lambda v, w: v * w),
    "1 + v": ("v", "v", lambda v: 1 + v),
    "tanh v": ("v", "v", torch.tanh),
    "m @ v": ("mv", "v", lambda m, v: torch.tanh(m @ v)),
    "diagonal": ("m", "v", torch.diagonal),
    "t mean": ("t", "v", lambda t: t.mean(0)),
    "m.t()": ("m", "m", lambda m: m.t()),
    "m @ m": ("mm", "m", lambda m, n: torch.tanh(m @ n)),
    "m * v": ("mv", "m", lambda m, v: m * v),
    "outer": ("vv", "m", torch.outer),
    "tril": ("m", "m", torch.tril),
    "t + v": ("tv", "t", lambda t, v: t + v),
    "t @ m": ("tm", "t", lambda t, m: torch.tanh(t @ m)),
    "t linear": ("tmv", "t", lambda t, m, v: torch.tanh(F.linear(t, m, v))),
    "t norm": ("tv", "t", lambda t, v: torch.tanh(F.layer_norm(t, t.shape[-1:], v))),
    "t flip": ("t", "t", lambda t: t.flip(0)),
}
Step = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Program:
    """Steps, each an operation and which of the values of its kinds so far; and how long and wide."""

    steps: tuple[Step, ...]
    length: int
    width: int


class Runs(nn.Module):
    """x [B, T, d] -> [B, T, d]: the last activation, and the constants and parameters that a program starts from."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        t, d = program.length, program.width
        self.vectors = nn.ParameterList([nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))])
        self.matrices = nn.ParameterList([nn.Parameter(torch.eye(d)), nn.Parameter(torch.eye(d))])
        self.table = nn.Parameter(torch.zeros(t, d))
        self.register_buffer("constant", torch.linspace(-1, 1, t * d).view(t, d))

    def forward(self, x: Tensor) -> Tensor:
        values = {"x": [x], "v": [*self.vectors], "m": [*self.matrices], "t": [self.table, self.constant]}
        for name, chosen in self.program.steps:
            kinds, result, function = OPERATIONS[name]
            operands = [values[kind][i % len(values[kind])] for kind, i in zip(kinds, chosen, strict=True)]
            values[result].append(function(*operands))
        return sum(values["x"][-2:]) * self.vectors[0]  # so that some parameter is always used


@st.composite
def programs(draw: st.DrawFn, longest: int = 10) -> Program:
    steps = []
    for _ in range(draw(st.integers(2, longest))):
        name = draw(st.sampled_from(sorted(OPERATIONS)))
        # The values made last are the likeliest operands: programs then hang together.
        steps.append((name, tuple(draw(st.integers(-3, -1)) for _ in OPERATIONS[name][0])))
    return Program(tuple(steps), draw(st.integers(2, 4)), draw(st.integers(3, 4)))
