"""Every family that people fine-tune, and models that are easy to get wrong: equal to the loop over single samples."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pathological
import pytest
import torch
from judge import TOLERANCE, B, judge, judge_in_turn
from reasons import why_no_blocks, why_without_rule
from table import table

import groupclip as gc
from groupclip.autograd.operation import SLOW
from models import Entry

pytest.importorskip("transformers")
with warnings.catch_warnings():
    # Theirs, at import: torch.jit.script, which DeBERTa decorates functions with, is deprecated.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    import families
    import heads

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # peft asks transformers
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operations of sixteen numbers get no faster with more, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


ENTRIES: dict[str, Entry] = families.ENTRIES | pathological.ENTRIES
ALL = list(ENTRIES)


def must_be_exact(name: str, style: str, dtype: torch.dtype = torch.float64) -> None:
    verdict = judge(ENTRIES[name], style, dtype)
    assert verdict.worst <= TOLERANCE[dtype], f"{name}, {style}: off by {verdict.worst:.1e}"
    why_without_rule(name, verdict.without_rule)  # raises where nobody has explained it


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", ALL)
def test_finest_and_coarsest_groups(name: str) -> None:
    must_be_exact(name, "param-wise")
    must_be_exact(name, "all-layer", torch.float32)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("style", ["all-layer", "block-wise", "layer-wise"])
@pytest.mark.parametrize("name", ALL)
def test_other_styles(name: str, style: str) -> None:
    try:
        gc.partition(ENTRIES[name].model(), style)
    except ValueError as refusal:
        assert style == "block-wise" and "found no repeated blocks" in str(refusal)
        assert why_no_blocks(name)
    else:
        must_be_exact(name, style)


@pytest.mark.one_in(8, first=2)
@pytest.mark.parametrize("name", ALL)
def test_one_engine_on_batches_of_other_sizes(name: str) -> None:
    entry = ENTRIES[name]
    batches = [entry.batch(size, torch.float64, seed=size) for size in (B, 1, 7, 2)]
    assert max(judge_in_turn(entry, batches)) <= TOLERANCE[torch.float64]


@pytest.mark.one_in(8, first=4)
@pytest.mark.parametrize(
    "name", [n for n, e in families.ENTRIES.items() if e.draw not in (heads.images, heads.spectra)]
)
def test_one_engine_on_texts_of_other_lengths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ENTRIES[name]

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        for size, length in ((B, 6), (3, B), (5, 5), (2, 10)):  # also as long as the batch, and as the first batch was
            monkeypatch.setattr(heads, "LENGTH", length)
            yield entry.batch(size, torch.float64, seed=length)

    assert max(judge_in_turn(entry, batches())) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_asked_for_is_the_one_that_runs(attention: str) -> None:
    config = ENTRIES[f"BERT ({attention})"].model().config
    assert config._attn_implementation == attention  # pyright: ignore


def test_a_sample_that_takes_another_ones_gradient_is_found() -> None:
    """The twin: a model that mixes its samples must not pass."""

    def mixing(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        losses = entry.losses(model, batch)
        return losses + 0.01 * losses[:1]

    entry = ENTRIES["Llama (sdpa)"]
    verdict = judge(Entry("mixing", entry.build, entry.draw, mixing), "param-wise")
    assert verdict.norms > 1e-4 and verdict.sums > 1e-4


def test_the_docs_are_made_of_the_figures_and_hold_every_model() -> None:
    docs = Path(__file__).parents[2] / "docs"
    report = json.loads((docs / "zoo.json").read_text())
    assert (docs / "zoo.md").read_text() == table(report)
    assert list(dict.fromkeys(row["model"] for row in report["rows"])) == ALL
    assert {row["result"] for row in report["rows"]} == {"exact", "refused"}
    assert not [row["model"] for row in report["rows"] if SLOW in row.get("operations", ())]  # none runs one sample at a time
