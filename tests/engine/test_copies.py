"""Copies, files, moves and casts of an attached model; engines that are dropped; two engines."""

from __future__ import annotations

import copy
import gc as garbage
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from check_attached import ENTRY, attached, train
from groupclip.autograd.tensors import PrivateParameter
from groupclip.errors import CoverageError
from oracle import clipped_sum


@pytest.mark.parametrize("way", ["save", "pickle"])
def test_a_saved_model_is_a_plain_one(way: str) -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    if way == "save":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
    else:
        loaded = pickle.loads(pickle.dumps(model))
    assert [type(p) for p in loaded.parameters()] == [nn.Parameter] * 5
    assert all(torch.equal(p, q.detach()) for p, q in zip(loaded.parameters(), model.parameters(), strict=True))
    ENTRY.losses(loaded, ENTRY.batch(4)).sum().backward()  # no engine in its way
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))  # and the original goes on
    loaded.zero_grad()
    again = gc.attach(loaded, None, "layer-wise", None)
    again.backward(ENTRY.losses(loaded, ENTRY.batch(4)))


def test_a_file_of_the_model_holds_nothing_of_the_run() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    written = pickle.dumps(model)
    for word in (b"SecureNoise", b"Keystream", b"AdamW", b"Ledger", b"Mechanism", b"Engine"):
        assert word not in written, word


def test_a_deep_copy_has_no_engine_and_says_so() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    twin = copy.deepcopy(model)
    with torch.no_grad():  # an average of weights, an evaluation: fine
        assert torch.equal(twin(ENTRY.batch(4)[0]), model(ENTRY.batch(4)[0]))
    with pytest.raises(CoverageError, match=r"deep copy of an attached one.*call groupclip\.attach on the copy"):
        twin(ENTRY.batch(4)[0])
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(p.grad is None for p in twin.parameters())


def test_an_engine_that_is_dropped_is_collected() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    watched = weakref.ref(engine), weakref.ref(model)
    del model, optimizer, engine
    garbage.collect()
    assert [w() for w in watched] == [None, None]


@pytest.mark.parametrize("move", [lambda m: m.to("cpu"), lambda m: m.double(), lambda m: m.double().float()])
def test_moves_and_casts_keep_the_model_attached(move: Any) -> None:
    model, _, engine = attached()
    move(model)
    assert all(type(p) is PrivateParameter for p in model.parameters())
    dtype = next(model.parameters()).dtype
    engine.backward(ENTRY.losses(model, ENTRY.batch(4, dtype)))
    assert all(p.grad.dtype == dtype for p in model.parameters())  # type: ignore[union-attr]


def test_weights_can_be_loaded_and_set_in_place() -> None:
    model, _, engine = attached()
    other = ENTRY.model(seed=9)
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5).clamp_(-1, 1)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(p.grad is not None for p in model.parameters())


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)


def test_two_engines_on_two_models() -> None:
    """A GAN: the discriminator is attached; so is a generator that is trained through it, its own part clipped alone."""
    torch.manual_seed(0)
    generator, critic = Generator().double(), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    z, x = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    wanted = {}
    for part, model in both.items():
        for p in both.parameters():
            p.requires_grad_(False)
        model.requires_grad_(True)
        groups = {part: tuple(n for n, p in both.named_parameters() if p.requires_grad)}
        wanted |= clipped_sum(both, lambda m, b: m["critic"](m["generator"](*b)).squeeze(1), (z,), groups).sums
    both.requires_grad_(True)
    first = gc.attach(generator, None, "all-layer", None)
    second = gc.attach(critic, None, "all-layer", None)
    # Each takes its own step: losses that pass through both would be clipped by both engines at once.
    losses = critic(generator(z).detach()).squeeze(1)
    second.backward(losses)
    for n, p in critic.named_parameters():
        torch.testing.assert_close(p.grad, wanted[f"critic.{n}"], rtol=0, atol=1e-12)
    critic.requires_grad_(False)
    first.backward(critic(generator(z)).squeeze(1))
    for n, p in generator.named_parameters():
        torch.testing.assert_close(p.grad, wanted[f"generator.{n}"], rtol=0, atol=1e-12)
    critic.requires_grad_(True)
    critic.zero_grad()
    second.backward(critic(x).squeeze(1))
    assert all(p.grad is not None for p in critic.parameters())


def test_a_teacher_that_is_not_attached_stays_out() -> None:
    model, _, engine = attached()
    teacher = ENTRY.model(seed=4)
    x, _ = ENTRY.batch(4)
    engine.backward((model(x) - teacher(x).detach()).square().sum(1))
    assert all(p.grad is None for p in teacher.parameters())


def test_a_deep_copy_can_be_attached() -> None:
    model, _, engine = attached()
    twin = copy.deepcopy(model)
    other = gc.attach(twin, None, "all-layer", None)
    other.backward(ENTRY.losses(twin, ENTRY.batch(4)))
    assert all(p.grad is not None for p in twin.parameters())
    assert all(p.grad is None for p in model.parameters())
    other.detach()
    assert [type(p) for p in twin.parameters()] == [nn.Parameter] * 5
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
