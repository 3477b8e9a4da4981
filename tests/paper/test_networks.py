"""Small convolutional networks of the table: shapes, the weights of a seed, training in a row, and an exact step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import groupclip as gc
from groupclip.paper.records.build import jobs, losses
from groupclip.paper.records.networks import Conv, Dense, Network, Pool, Spread
from groupclip.paper.records.rows import CIFAR_CNN, GREY_CNN, ROWS, TEMPERED, TEMPERED_CIFAR, Row, named
from groupclip.paper.runner import run_jobs
from groupclip.paper.scaled.vision_data import read
from groupclip.paper.scaled.vision_made import write_made
from oracle import clipped_sum


class Quiet:
    """Tells nothing."""

    def skipped(self, job, result) -> None: ...
    def begin(self, job, number, jobs) -> None: ...
    def step(self, step, steps) -> None: ...
    def done(self, job, result) -> None: ...


@pytest.fixture(autouse=True)
def _fresh():
    yield
    read.cache_clear()


def grey(file, train: int = 200, test: int = 60) -> None:
    """Four kinds of bright quarters on noise, in the format of MNIST's file."""
    random = np.random.default_rng(3)
    members: dict[str, np.ndarray] = {"classes": np.array(list("abcd"))}
    for split, records in (("train", train), ("test", test)):
        labels = random.integers(0, 4, records)
        pixels = random.integers(0, 100, (records, 28, 28))
        for image, label in zip(pixels, labels, strict=True):
            image[14 * (label // 2) :][:14, 14 * (label % 2) :][:, :14] += 120
        members |= {f"{split}_x": pixels.astype(np.uint8), f"{split}_y": labels}
    file.parent.mkdir(exist_ok=True)
    np.savez(file, **members)  # type: ignore[arg-type]


def short(name: str) -> Row:
    (row,) = named((name,))
    settings = dataclasses.replace(row.settings, batch_size=50, steps=4, epsilon=8.0, microbatch=32)
    return dataclasses.replace(row, epsilon=8.0, settings=settings)


RUN_HERE = tuple(row.name for row in ROWS if row.network is not None and not row.gpu)


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_row_with_a_network_runs_and_learns_without_privacy(name, tmp_path):
    row, out = short(name), tmp_path / "out"
    if row.file == "cifar10.npz":
        write_made(tmp_path / "data" / row.file, classes=4, train=120, test=60, seed=2)
    else:
        grey(tmp_path / "data" / row.file)
    (private,) = run_jobs(jobs([row], range(1), tmp_path / "data", out), out, Quiet())
    assert private.privacy["epsilon"] <= 8.0 and private.privacy["sampling"] == "groupclip"
    assert 0 <= private.metrics["accuracy"] <= 100 and private.settings["workload"]["inputs"] == np.prod(
        row.network.maps
    )
    slow = dataclasses.replace(
        row, settings=dataclasses.replace(row.settings, lr=0.02, steps=40, batch_size=100, average="none")
    )
    (plain,) = run_jobs(jobs([slow], range(1), tmp_path / "data", out, private=False), out, Quiet())
    assert plain.privacy == {} and plain.metrics["accuracy"] > 60  # of four kinds


def test_a_run_that_was_stopped_goes_on_with_its_network(tmp_path):
    grey(tmp_path / "data" / "mnist.npz")

    class Stopping(Quiet):
        def step(self, step, steps) -> None:
            taken.append(step)
            if taken == [1, 2]:
                raise KeyboardInterrupt

    taken: list[int] = []
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs([short("mnist-cnn")], range(1), tmp_path / "data", out), out, Stopping())
    (result,) = run_jobs(jobs([short("mnist-cnn")], range(1), tmp_path / "data", out), out, Stopping())
    assert taken == [1, 2, 3, 4] and result.privacy["steps"] == 4 and result.privacy["steps_lost"] == 0


@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        (GREY_CNN, 81 * 9 * 16 + 16 + 16 * 9 * 32 + 32 + 512 * 32 + 32 + 330),
        (CIFAR_CNN, 243 * 64 + 64 + 64 * 9 * 64 + 64 + 1024 * 10 + 10),
        (TEMPERED, 64 * 16 + 16 + 16 * 16 * 32 + 32 + 512 * 32 + 32 + 330),  # 26,010, as Papernot et al. have it
    ],
)
def test_networks_have_the_layers_that_they_name(network, parameters):
    model = network.build(10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    x = torch.randn(3, *network.maps)
    assert model(x).shape == (3, 10)
    assert torch.equal(model(x.flatten(1)), model(x))


def test_the_network_of_colours_keeps_every_layer():
    model = TEMPERED_CIFAR.build(10, seed=0)
    convolutions = [layer for layer in model.layers if isinstance(layer, torch.nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 32, 64, 64, 128, 128, 256, 10]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_weights_are_those_of_the_seed_and_the_generator_is_left_alone():
    network = Network((1, 6, 6), (Conv(3, 3), Pool("max", 2, 2), Dense(4)))
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first, other = network.build(3, seed=1), network.build(3, seed=2)
    assert torch.equal(torch.rand(2), expected)
    again = network.build(3, seed=1)
    for (name, one), two, three in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two) and not torch.equal(one, three), name


@pytest.mark.parametrize(
    "network",
    [
        Network((5, 8, 8), (Conv(4, 1), Conv(6, 3, 1, 1), Pool("mean", 2, 2), Conv(6, 3, 1, 1))),  # as CIFAR_CNN
        Network((5, 7, 7), (Conv(4, 3, 2, 1), Conv(6, 3, 1, 1), Dense(5))),  # as GREY_CNN
        Network((1, 28, 28), (Conv(3, 8, 2, 3), Pool("max", 2, 1), Conv(4, 4, 2), Pool("max", 2, 1), Dense(5))),
        Network((3, 8, 8), (Conv(4, 3, 1, 1), Pool("mean", 2, 2), Conv(5, 3, 1, 1), Spread())),
    ],
)
def test_a_step_of_a_network_is_exact(network):
    model = network.build(4, seed=0).double()
    torch.manual_seed(1)
    inputs, labels = torch.randn(7, int(np.prod(network.maps)), dtype=torch.float64), torch.arange(7) % 4
    names = [name for name, _ in model.named_parameters()]
    expected = clipped_sum(model, losses, (inputs, labels), {"all": names}, "automatic", {"all": 1.0})
    engine = gc.attach(model, None, "all-layer", None, clip="automatic", thresholds=1.0)
    engine.backward(losses(model, (inputs, labels)))
    for name, param in model.named_parameters():
        assert param.grad is not None and torch.allclose(param.grad, expected.sums[name], rtol=1e-9, atol=1e-12), name
    engine.detach()
    assert expected.norms["all"].min() > 0
