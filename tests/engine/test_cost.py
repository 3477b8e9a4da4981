"""What a step costs over plain training, counted: Python calls, uses seen, values asked of the device. No clock."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import groupclip as gc
from groupclip.autograd import tensors as operands
from groupclip.engine.step import PrivateStep

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

PARAMETERS = 41
IDS = torch.arange(64).view(4, 16) % 90 + 5
LABELS = torch.tensor([0, 1, 0, 1])


def tiny() -> nn.Module:
    """A RoBERTa of 2 layers of 64: the model on which what isn't arithmetic weighs most."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=40, num_labels=2,
    )  # fmt: skip
    return transformers.RobertaForSequenceClassification(config).train()


class Steps:
    """Steps of a model, private or plain."""

    def __init__(self, style: str | None) -> None:
        self.model = tiny()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.engine = None
        if style is not None:
            mechanism = gc.Mechanism(dataset_size=1000, expected_batch_size=4, steps=100, noise_multiplier=1.0)
            self.engine = gc.attach(self.model, self.optimizer, style, mechanism)
        assert sum(p.requires_grad for p in self.model.parameters()) == PARAMETERS
        for _ in range(3):
            self.take()

    def forward(self) -> Tensor:
        logits = self.model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
        return F.cross_entropy(logits, LABELS, reduction="none")

    def backward(self, losses: Tensor) -> None:
        losses.sum().backward() if self.engine is None else self.engine.backward(losses)

    def take(self) -> None:
        self.backward(self.forward())
        self.optimizer.step()
        self.optimizer.zero_grad()


def python_calls(work: Callable[[], object]) -> int:
    """Calls of functions written in Python."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("style", ["all-layer", "block-wise", "layer-wise"])
def test_python_calls_a_parameter_and_step(style: str) -> None:
    """At most 120 over plain PyTorch."""
    plain, private = Steps(None), Steps(style)
    over = python_calls(private.take) - python_calls(plain.take)
    assert 0 < over <= 120 * PARAMETERS


def test_uses_of_parameters_are_seen_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """22 operations use the 41 parameters: 5 layer norms, 3 tables, 14 linear layers."""
    private = Steps("all-layer")
    seen: Counter[str] = Counter()
    dispatch = operands._dispatch[0]

    def counted(func: Any, args: Any, kwargs: Any) -> Any:
        seen[func.__name__] += 1
        return dispatch(func, args, kwargs)

    monkeypatch.setattr(operands, "_dispatch", [counted, counted])
    private.backward(private.forward())
    assert sum(seen.values()) <= 2 * 22, seen


class Asked(TorchDispatchMode):
    """Counts the operations that wait for the device: what they give is needed in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item"):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("style", "groups"), [("all-layer", 1), ("layer-wise", 22)])
def test_values_asked_of_the_device(style: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a group (whether its samples are finite), and one a step (``tolist``, which is no operation: it is counted by name).

    The model asks once by itself, whether its mask is of ones: of every sample, that is another ``tolist``.
    """
    private, plain = Steps(style), Steps(None)
    lists = -1
    told = Tensor.tolist

    def tolist(self: Tensor) -> Any:
        nonlocal lists
        lists += 1
        return told(self)

    monkeypatch.setattr(Tensor, "tolist", tolist)
    with Asked() as without:
        plain.take()
    with Asked() as asked:
        private.take()
    over = asked.found - without.found
    assert sum(over.values()) <= groups and lists <= 1, (over, lists)


def test_twin_a_step_that_asks_for_every_parameter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    private = Steps("all-layer")
    check = PrivateStep._check_batch

    def asks(self: PrivateStep, ledger: Any, owner: Any, found: Any, lengths: Any) -> None:
        for _, grad, _ in found:
            bool(grad.isfinite().all())
        check(self, ledger, owner, found, lengths)

    monkeypatch.setattr(PrivateStep, "_check_batch", asks)
    with Asked() as asked:
        private.take()
    assert sum(asked.found.values()) > PARAMETERS
