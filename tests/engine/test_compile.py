"""Compiled models: equal to the eager ones, compiled before or after attach, whole or in part; graph breaks counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import ENTRIES, Clipped, faults, gradients, members
from groupclip.alone.as_written import as_written

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the tracer's
QUICK, SLOW = ["eager"], [pytest.param(b, marks=pytest.mark.slow) for b in ("aot_eager", "inductor")]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def found(name: str, style: str, backend: str, when: str) -> list[str]:
    """Two passes, the second on a batch of another size."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    groups = gc.partition(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    compiled: Any = model
    if when == "a part":
        part = "2" if name == "mlp" else "h.0"
        model.get_submodule(part).compile(backend=backend)
    elif when == "in place":
        model.compile(backend=backend)
    elif when == "before attach":
        compiled = torch.compile(model, backend=backend)
    if when != "after attach":  # compiled and run as a plain model
        entry.losses(compiled, entry.batch(4, torch.float64)).sum().backward()
        model.zero_grad()
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
    if when == "after attach":
        compiled = torch.compile(model, backend=backend)
    wrong = []
    for size in (4, 3):
        batch = entry.batch(size, torch.float64)
        want = oracle.clipped_sum(entry.model(torch.float64), entry.losses, batch, members(groups), "abadi", thresholds)
        engine.backward(entry.losses(compiled, batch))
        wrong += faults(Clipped(gradients(model), engine.unsafe_norms()), want, groups, thresholds, 1e-10)
        engine.discard()
    engine.detach()
    return wrong


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", QUICK + SLOW)
@pytest.mark.parametrize("when", ["after attach", "before attach", "in place", "a part"])
@pytest.mark.parametrize(("name", "style"), [("mlp", "all-layer"), ("gpt-tied", "layer-wise")])
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_compiled_is_equal_to_eager(name: str, style: str, backend: str, when: str) -> None:
    assert found(name, style, backend, when) == []


def test_attached_through_the_compiled_model() -> None:
    """``torch.compile(model)`` is a module itself: names get its prefix."""
    entry = ENTRIES["mlp"]
    compiled: Any = torch.compile(entry.model(torch.float64), backend="eager")
    groups = gc.partition(compiled, "layer-wise")
    engine = gc.attach(compiled, None, groups, None)
    batch = entry.batch(4, torch.float64)
    engine.backward(entry.losses(compiled, batch))
    plain = entry.model(torch.float64)
    again = gc.attach(plain, None, "layer-wise", None)
    again.backward(entry.losses(plain, batch))
    for n, g in gradients(plain).items():
        torch.testing.assert_close(compiled.get_parameter(f"_orig_mod.{n}").grad, g, rtol=0, atol=1e-13)


def breaks(name: str) -> tuple[int, int]:
    """Graph breaks and graphs of two training passes through a model of the catalogue."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    engine = gc.attach(model, None, "layer-wise", None)
    compiled: Any = torch.compile(model, backend="eager")
    for seed in range(2):
        engine.backward(entry.losses(compiled, entry.batch(4, torch.float64, seed=seed)))
    counters = torch._dynamo.utils.counters
    reasons = counters["graph_break"]
    assert all("torch.compiler.disable()" in reason for reason in reasons), list(reasons)
    return sum(reasons.values()), counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_a_training_pass_is_left_to_python_and_nothing_of_it_is_traced(name: str) -> None:
    """Breaks at the call of the model alone: the samples run side by side behind it."""
    found, graphs = breaks(name)
    assert found <= 3 and graphs == 0


def test_evaluation_is_compiled_as_ever() -> None:
    """But for the operations that take a parameter, whose class isn't the compiler's."""
    entry = ENTRIES["gpt"]
    model = entry.model(torch.float64)
    gc.attach(model, None, "layer-wise", None)
    compiled: Any = torch.compile(model, backend="eager")
    with torch.no_grad():
        batch = entry.batch(4, torch.float64)
        torch.testing.assert_close(entry.losses(compiled, batch), entry.losses(model, batch))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_a_model_compiled_whole_is_refused_by_the_compiler() -> None:
    """``fullgraph=True`` allows no break, and says so."""
    entry = ENTRIES["mlp"]
    model = entry.model()
    gc.attach(model, None, "layer-wise", None)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"torch\.compiler\.disable|Observed exception"):
        entry.losses(compiled, entry.batch(4))


def test_a_frozen_part_may_be_compiled_whole() -> None:
    """Nothing private in it, nothing to break."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6)).double().requires_grad_(False)
    head = nn.Linear(6, 2).double()

    class Model(nn.Module):
        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body, self.head = body, head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x)).square().sum(1)

    x, results = torch.randn(4, 5).double(), []
    for part in (body, torch.compile(body, backend="eager", fullgraph=True)):
        engine = gc.attach(Model(part), None, "all-layer", None)
        engine.backward(engine.model(x))
        results.append(head.weight.grad)
        engine.detach()
    assert torch.equal(*results)


def test_import_and_attach_without_optimizer_cost_what_they_say() -> None:
    """``import groupclip`` doesn't load the compiler."""
    code = "import sys, groupclip; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_passes_in_several_threads_leave_the_compiler_as_it_was() -> None:
    """Torch's stance is one for the process: the first pass in sets it, the last one out puts it back."""
    model = nn.Linear(3, 2)
    compiled: Any = torch.compile(model, backend="eager")
    outer, inner = as_written(), as_written()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__()
    compiled(torch.randn(4, 3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
    inner.__exit__()
    compiled(torch.randn(4, 3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
