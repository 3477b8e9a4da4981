"""Time of one forward and backward pass over plain training, operation by operation, interleaved in one run; prints JSON.

    python benchmarks/operations.py --rounds 5
    python benchmarks/operations.py --only lstm gru --rounds 9 --style all-layer

Compare two versions by running both on the same machine: ratios are to plain training of that run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

from groupclip.paper.bench import interleaved, one_pass


class Uses(nn.Module):
    """A function of the input and of parameters, as a model; ``front`` makes it an activation that needs a gradient."""

    def __init__(
        self, function: Callable[..., Tensor], *shapes: tuple[int, ...], front: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.front = nn.Identity() if front is None else front
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(0.05 * torch.randn(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.front(x), *self.weights)


class First(nn.Module):
    """The outputs of a recurrent layer, of sequences of different lengths if ``packed``."""

    def __init__(self, net: nn.RNNBase, packed: bool = False) -> None:
        super().__init__()
        self.net, self.packed = net, packed

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            return self.net(x)[0]
        lengths = x.shape[1] - torch.arange(len(x)) * 7 % (x.shape[1] // 2)
        state = self.net(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1]
        return (state[0] if isinstance(state, tuple) else state).transpose(0, 1)


class Steps(nn.Module):
    """A cell at every step."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state  # pyright: ignore


def attention(x: Tensor, w: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(F.linear(x, part) for part in w.chunk(3)))


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def words(high: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(high, shape)


Case = tuple[Callable[[], nn.Module], Callable[[], Tensor]]
CASES: dict[str, Case] = {
    "linear": (lambda: nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)), numbers(32, 64, 256)),
    "rnn": (lambda: First(nn.RNN(128, 256, batch_first=True)), numbers(32, 64, 128)),
    "gru": (lambda: First(nn.GRU(128, 256, batch_first=True)), numbers(32, 64, 128)),
    "lstm": (lambda: First(nn.LSTM(128, 256, batch_first=True)), numbers(32, 64, 128)),
    "lstm, 2 layers, both ways": (
        lambda: First(nn.LSTM(128, 128, 2, batch_first=True, bidirectional=True)), numbers(32, 64, 128),
    ),
    "lstm, packed": (lambda: First(nn.LSTM(128, 256, batch_first=True), packed=True), numbers(32, 64, 128)),
    "gru cell": (lambda: Steps(nn.GRUCell(128, 256)), numbers(32, 32, 128)),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(32, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 8, 4, 2, 1)),
        numbers(16, 32, 14, 14),
    ),
    "einsum": (
        lambda: Uses(lambda x, w: torch.einsum("btd,dhk->bhtk", x, w), (256, 4, 64), front=nn.Linear(256, 256)),
        numbers(16, 64, 256),
    ),
    "einsum of heads": (
        lambda: Uses(
            lambda x, w: torch.einsum("bthd,hde->bthe", x.unflatten(-1, (4, 64)), w), (4, 64, 64), front=nn.Linear(256, 256)
        ),
        numbers(16, 64, 256),
    ),
    "bilinear": (lambda: nn.Sequential(nn.Linear(64, 64), Pairs()), numbers(64, 64)),
    "prelu": (lambda: nn.Sequential(nn.Conv2d(16, 32, 3), nn.PReLU(32), nn.Conv2d(32, 8, 3)), numbers(16, 16, 28, 28)),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(5000, 128), nn.Linear(128, 128)), words(5000, 64, 100)),
    "chunks of a weight": (lambda: Uses(attention, (768, 256), front=nn.Linear(256, 256)), numbers(16, 64, 256)),
    "tied head": (
        lambda: Uses(lambda ids, w: F.linear(F.embedding(ids, w), w), (2000, 128)), words(2000, 16, 64),
    ),
    "tied head, w.t()": (lambda: Uses(lambda ids, w: F.embedding(ids, w) @ w.t(), (2000, 128)), words(2000, 16, 64)),
    "weight norm": (lambda: nn.Sequential(nn.Linear(256, 256), weight_norm(nn.Linear(256, 256))), numbers(16, 64, 256)),
    "spectral norm": (lambda: nn.Sequential(nn.Linear(256, 256), spectral_norm(nn.Linear(256, 256))), numbers(16, 64, 256)),
}  # fmt: skip


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Bilinear(64, 64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.pairs(x, torch.tanh(x))


def passes(case: Case, style: str | None) -> Callable[[], None]:
    """One pass after another of plain training, or of that style; the first ones are made here."""
    torch.manual_seed(0)
    model, batch = case[0](), case[1]()
    run = one_pass(model, lambda: model(batch).square().flatten(1).mean(1), style)
    run()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--style", default="layer-wise")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    ratios, seconds = {}, {}
    for name in given.only:
        runs = {"plain": passes(CASES[name], None), "private": passes(CASES[name], given.style)}
        times = interleaved(runs, given.rounds)
        seconds[name] = round(statistics.median(times["plain"]), 4)
        ratios[name] = round(statistics.median(times["private"]) / statistics.median(times["plain"]), 2)
    setting = {
        "style": given.style,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }
    print(json.dumps({"ratios": ratios, "plain_seconds": seconds, "setting": setting}, indent=2))


if __name__ == "__main__":
    main()
