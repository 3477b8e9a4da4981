"""Random draws in a checked model: those of single samples pass, those that mix samples are seen, and none is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.validate.draws_elsewhere import SEEDS
from groupclip.validate.replay import Replays
from groupclip.validate.samples import Batch
from small import Made, cross_entropy, images

Forward = Callable[..., Tensor]


def mixed(model: Any, x: Tensor, order: Any) -> Tensor:
    return model.head(0.7 * x + 0.3 * x[order])


def shuffled(n: int) -> list[int]:
    order = list(range(n))
    random.shuffle(order)
    return order


def sometimes(draw: Callable[[], float], probability: float) -> Forward:
    """Mixes in some passes and in others not."""
    return lambda m, x: mixed(m, x, torch.arange(len(x)).roll(1)) if draw() < probability else m.head(x)


def some(draw: Callable[[int], Tensor], below: float) -> Forward:
    """Puts another sample in the place of those that draw little."""
    return lambda m, x: m.head(torch.where(draw(len(x)) < below, x.roll(1, 0), x))


MIX: dict[str, Forward] = {
    "torch.randperm": lambda m, x: mixed(m, x, torch.randperm(len(x))),
    "sort of torch.rand": lambda m, x: mixed(m, x, torch.rand(len(x)).argsort()),
    "sort of torch.randn, falling": lambda m, x: mixed(m, x, torch.randn(len(x)).argsort(descending=True)),
    "torch.randint": lambda m, x: mixed(m, x, torch.randint(len(x), (len(x),))),
    "torch.multinomial": lambda m, x: mixed(m, x, torch.multinomial(torch.ones(len(x)), len(x))),
    "random.shuffle": lambda m, x: mixed(m, x, shuffled(len(x))),
    "random.sample": lambda m, x: mixed(m, x, random.sample(range(len(x)), len(x))),
    "np.random.permutation": lambda m, x: mixed(m, x, np.random.permutation(len(x))),
    "sort of np.random.rand": lambda m, x: mixed(m, x, np.random.rand(len(x)).argsort()),
    "a numpy generator of its own": lambda m, x: mixed(m, x, m.rng.permutation(len(x))),
    "a torch generator of its own": lambda m, x: mixed(m, x, torch.rand(len(x), generator=m.gen).argsort()),
    **{f"torch.rand() < {p}": sometimes(lambda: float(torch.rand(())), p) for p in (0.05, 0.4, 0.95)},
    **{f"torch.rand(1) > 1 - {p}": sometimes(lambda: 1 - float(torch.rand(1)), p) for p in (0.05, 0.95)},
    **{f"random.random() < {p}": sometimes(lambda: random.random(), p) for p in (0.01, 0.4, 0.99)},
    **{f"np.random.rand() < {p}": sometimes(lambda: np.random.rand(), p) for p in (0.01, 0.4, 0.99)},
    **{f"1 - random.random() < {p}": sometimes(lambda: 1 - random.random(), p) for p in (0.01, 0.4)},
    **{f"1 - np.random.rand() < {p}": sometimes(lambda: 1 - np.random.rand(), p) for p in (0.01, 0.4)},
    **{f"some samples, {p}": some(lambda n: torch.rand(n, 1), p) for p in (0.05, 0.4)},
    **{f"some samples, 1 - {p}": some(lambda n: 1 - torch.rand(n, 1), p) for p in (0.05, 0.4)},
    **{f"some samples by numpy, {p}": some(lambda n: torch.tensor(np.random.rand(n, 1)), p) for p in (0.1, 0.4)},
    "some samples by torch.bernoulli": some(lambda n: 1 - torch.bernoulli(torch.full((n, 1), 0.1)), 0.5),
    "some samples by torch.randint": some(lambda n: torch.randint(20, (n, 1)) - 18, 0.5),
    "in turn, from a neighbour": lambda m, x: m.head(torch.stack([x[i - int(torch.rand(()) < 0.3)] for i in range(len(x))])),
    "share of what was dropped": lambda m, x: m.head(x * (keep := (torch.rand(len(x), 1) < 0.5).float()) / (0.1 + keep.mean())),
}  # fmt: skip


def scaled(by: Callable[[Tensor], Any]) -> Forward:
    """Every sample times something of its own."""
    return lambda m, x: m.head(x) * by(x)


APART: dict[str, Forward] = {
    "dropout": lambda m, x: m.head(F.dropout(x, 0.5)),
    "alpha dropout, feature dropout": lambda m, x: m.head(F.alpha_dropout(F.dropout1d(x[:, None], 0.2), 0.3)[:, 0]),
    "stochastic depth": scaled(lambda x: 1 + (torch.rand(len(x), 1) < 0.5).float()),
    "torch.bernoulli": scaled(lambda x: 1 + torch.bernoulli(torch.full((len(x), 1), 0.5))),
    "torch.randint": scaled(lambda x: torch.randint(1, 9, (len(x), 1))),
    "tensor.random_": scaled(lambda x: torch.empty(len(x), 1).random_(1, 9)),
    "torch.multinomial": scaled(lambda x: 1 + torch.multinomial(x.softmax(1), 1)),
    "torch.poisson": scaled(lambda x: 1 + torch.poisson(x[:, :1].exp())),
    "tensor.geometric_, tensor.log_normal_": scaled(
        lambda x: torch.empty(len(x), 1).geometric_(0.3) + torch.empty(len(x), 1).log_normal_()
    ),
    "tensor.cauchy_": scaled(lambda x: torch.empty(len(x), 1).cauchy_().tanh()),
    "Categorical": scaled(lambda x: 1 + torch.distributions.Categorical(logits=x).sample()[:, None]),
    "Gamma": scaled(lambda x: torch.distributions.Gamma(x[:, :1].exp(), 1.0).sample()),
    "Dirichlet": scaled(lambda x: torch.distributions.Dirichlet(x[:, :3].exp()).sample()),
    "Normal, reparametrised": lambda m, x: torch.distributions.Normal(m.head(x), 1.0).rsample(),
    "Gumbel softmax": lambda m, x: F.gumbel_softmax(m.head(x)) * m.head(x),
    "rrelu": lambda m, x: F.rrelu(m.head(x), training=True),
    "np.random.rand": scaled(lambda x: 1 + torch.tensor(np.random.rand(len(x), 1) < 0.5)),
    "np.random.normal": scaled(lambda x: torch.tensor(np.random.normal(size=(len(x), 1))).float()),
    "random.random": scaled(lambda x: torch.tensor([[1 + random.random()] for _ in x])),
    "a torch generator of its own": lambda m, x: m.head(x) * torch.rand(len(x), 1, generator=m.gen),
    "one factor for all": lambda m, x: m.head(x) * (1 + torch.rand(())) * (1 + random.random()) * (1 + np.random.rand()),
    "a mask for all": lambda m, x: m.head(x * torch.rand(4)),
    "the samples second": lambda m, x: m.head(x + torch.randn(4, len(x)).t()),
    "random order within a sample": lambda m, x: m.head(x.gather(1, torch.rand_like(x).argsort(1))),
    "random places, two for each sample": lambda m, x: m.head(x) * torch.rand(2 * len(x)).view(-1, 2).sum(1, keepdim=True),
    "random cut for all": lambda m, x: m.head(x * (torch.arange(4) < int(torch.randint(1, 5, ())))),
    "in turn, a number each": lambda m, x: m.head(torch.stack([r * (1 + torch.rand(())) for r in x])),
    "in turn, several each": lambda m, x: m.head(torch.stack([r * torch.rand(4) * int(torch.randint(1, 4, ())) for r in x])),
    "in turn, then dropout": lambda m, x: m.head(F.dropout(torch.stack([r * int(torch.randint(1, 4, ())) for r in x]), 0.5)),
    "seeded in the pass": lambda m, x: (torch.manual_seed(3), m.head(x) * torch.rand(len(x), 1))[1],
}  # fmt: skip


def model(forward: Forward) -> nn.Module:
    torch.manual_seed(0)
    return Made(forward, rng=np.random.default_rng(5), gen=torch.Generator().manual_seed(5)).train()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("samples", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
@pytest.mark.parametrize("name", MIX)
def test_mixing_at_random_is_seen(name: str, samples: int) -> None:
    with pytest.raises(gc.PrivacyViolation, match=r"mixes the samples|depends on the other samples"):
        gc.check(model(MIX[name]), cross_entropy, images(), "layer-wise", samples=samples)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("samples", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
@pytest.mark.parametrize("name", APART)
def test_draws_of_single_samples_are_no_mixing(name: str, samples: int) -> None:
    assert len(gc.check(model(APART[name]), cross_entropy, images(), "layer-wise", samples=samples).replayed) >= 4


_drawn: list[Tensor] = []  # out of reach of what puts back all that a model keeps


def test_numbers_differ_from_sample_to_sample_and_from_draw_to_draw() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        _drawn.extend([torch.rand(len(x), 4), torch.rand(len(x), 4)])
        return m.head(x * _drawn[-1])

    gc.check(model(forward), cross_entropy, images(), "layer-wise")
    size = len(images()[0])
    first, second = [d for d in _drawn if len(d) == size][-2:]
    assert not torch.equal(first, second)
    assert len({tuple(row.tolist()) for row in (*first, *second)}) == 2 * size


def test_diffusion_with_times_and_noise_of_the_loss() -> None:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.body = nn.Embedding(20, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.body(x + self.time(t))

    def losses(m: nn.Module, x: Tensor, y: Tensor, mix: bool = False) -> Tensor:
        t, noise = torch.randint(20, (len(x),)), torch.randn_like(x)
        keep = (1 - t / 20)[:, None]
        error = (m(keep.sqrt() * x + (1 - keep).sqrt() * noise, t) - noise).square().mean(1)
        return error * (t == t.max()) if mix else error

    gc.check(Denoiser(), losses, images(), "layer-wise")
    with pytest.raises(gc.PrivacyViolation, match="the loss of a sample depends on the other"):
        gc.check(Denoiser(), lambda m, x, y: losses(m, x, y, True), images(), "layer-wise")


def dropped(m: Any, x: Tensor) -> Tensor:
    return m.head(F.dropout(F.dropout(x, 0.5) + 0.1 * torch.randn_like(x), 0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_first_pass_draws_what_its_samples_always_draw(dtype: torch.dtype) -> None:
    """So it needn't be made again; what it drew is still to be learnt then."""
    x, y = images()
    model, data = Made(dropped).to(dtype).train(), Batch((x.to(dtype), y))
    replays, pairs = Replays(model, cross_entropy, 3), [(0, 2), (1, 0)]
    found = replays.rehearse([data.pick(*each) for each in pairs], data.pick(0), 0, every=False)
    assert len(found.traces) == 1
    with replays.alike((0, 2)), torch.no_grad():
        again = replays.loss(data.pick(0, 2))
    assert found.loss == float(again[0])
    with replays.alike((0,)), torch.no_grad():
        assert found.loss == pytest.approx(float(replays.loss(data.pick(0))), rel=1e-6)
    assert len(replays.rehearse([data.pick(*each) for each in pairs], data.pick(0), 0).traces) == 2


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(len(x), 4), lambda x: torch.rand(()), lambda x: torch.rand(len(x), 1), lambda x: torch.rand(2, 4)[:1],
        lambda x: torch.randn_like(x[:1]), lambda x: torch.randn_like(torch.ones(2, 4))[:1],
        lambda x: torch.randn_like(x.repeat(2, 1))[: len(x)], lambda x: torch.from_numpy(np.random.rand(len(x), 4)).to(x.dtype),
    ],
)  # fmt: skip
def test_a_first_pass_that_may_draw_something_else_is_made_again(draw: Callable[[Tensor], Tensor]) -> None:
    model, data = Made(lambda m, x: m.head(x + draw(x))), Batch(images())
    found = Replays(model, cross_entropy, 3).rehearse([data.pick(0, 2), data.pick(1, 0)], data.pick(0), 0, every=False)
    assert found.loss is None and len(found.traces) == 2


def test_a_draw_that_is_ragged_in_other_samples_is_no_mixing() -> None:
    """The first samples have one row each, so their draw looks like one of single samples."""

    def forward(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        rows = F.dropout(m.head(x[mask]), 0.5)
        return rows.new_zeros(*mask.shape, 3).masked_scatter(mask[..., None].expand(*mask.shape, 3), rows).sum(1)

    x, y = images(5, 3, 4)
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 1, 0]]).bool()
    losses = lambda m, x, mask, y: F.cross_entropy(m(x, mask), y, reduction="none")  # noqa: E731
    gc.check(Made(forward).train(), losses, (x, mask, y), "layer-wise")


def test_checkpoints_draw_again_what_they_drew() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = torch.utils.checkpoint.checkpoint(lambda h: F.dropout(m.body(h), 0.5).tanh(), x, use_reentrant=False)
        return m.head(F.dropout(h, 0.3))

    gc.check(Made(forward, body=nn.Linear(4, 4)).train(), cross_entropy, images(), "all-layer")


def test_ragged_draws_are_constants() -> None:
    def forward(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        rows = F.dropout(m.head(x[mask]), 0.5)
        return rows.new_zeros(*mask.shape, 3).masked_scatter(mask[..., None].expand(*mask.shape, 3), rows).mean(1)

    x, y = images(5, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1]]).bool()
    gc.check(
        Made(forward).train(),
        lambda m, x, mask, y: F.cross_entropy(m(x, mask), y, reduction="none"),
        (x, mask, y),
        "layer-wise",
    )


def test_generators_are_left_as_they_were() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        own = torch.rand(len(x), 1, generator=m.gen)
        return m.head(x) * (own + torch.rand(len(x), 1) + np.random.rand() + random.random() + m.rng.random())

    checked = model(forward)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state(), checked.gen.get_state()  # pyright: ignore
    functions, own = (random.random, np.random.rand), repr(checked.rng.bit_generator.state)  # pyright: ignore
    gc.check(checked, cross_entropy, images(), "layer-wise")
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # pyright: ignore
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.equal(checked.gen.get_state(), states[3])  # pyright: ignore
    assert (random.random, np.random.rand) == functions
    assert repr(checked.rng.bit_generator.state) == own  # pyright: ignore


def test_a_generator_of_the_models_own_is_named() -> None:
    forward = lambda m, x: m.head(x) * torch.tensor(m.rng.random((len(x), 1))).float()  # noqa: E731
    with pytest.raises(
        gc.PrivacyViolation, match=r"random numbers\? Those of a numpy or Python generator of the model's own"
    ):
        gc.check(model(forward), cross_entropy, images(), "layer-wise")


def test_a_generator_made_in_the_pass_is_named() -> None:
    forward = lambda m, x: m.head(x) * torch.tensor(np.random.default_rng().random((len(x), 1))).float()  # noqa: E731
    with pytest.raises(gc.PrivacyViolation, match=r"random numbers\? Those of a numpy or Python generator"):
        gc.check(model(forward), cross_entropy, images(), "layer-wise")
    shared = lambda m, x: m.head(x) * np.random.default_rng().random()  # noqa: E731
    gc.check(model(shared), cross_entropy, images(), "layer-wise")


def test_seeds_of_the_rounds_move_samples_and_lie_apart() -> None:
    for n in (2, 3):
        for round_, (python, numpy) in enumerate(SEEDS):
            np.random.seed(numpy)
            assert np.random.permutation(n)[0] != 0
            random.seed(python)
            assert (shuffled(n) if round_ < 2 else random.sample(range(n), n))[0] != 0
    firsts = [(random.Random(p).random(), np.random.RandomState(n).rand()) for p, n in SEEDS]
    assert all(a < 0.1 < 0.3 < b < 0.7 < 0.9 < c for b, a, c in zip(*firsts, strict=True))
