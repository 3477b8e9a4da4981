"""The workloads under the trainer: private steps end to end, and that what is trained is what is scored."""

from __future__ import annotations

import pytest
import torch

from groupclip.paper.build import build
from groupclip.paper.data.e2e import generate
from groupclip.paper.settings import TrainSettings
from groupclip.paper.source import StandIn
from groupclip.paper.trainer import train_cell
from groupclip.paper.workload import Workload

torch.set_num_threads(1)
PAIRS = [
    ("gtsrb", "vit-small", {"image_size": 32}),
    ("mnli", "roberta-base", {"length": 32}),
    ("e2e", "gpt2-small", {"length": 48}),
]


@pytest.mark.one_in(3, first=2)
@pytest.mark.parametrize(("dataset", "model", "size"), PAIRS, ids=[model for _, model, _ in PAIRS])
def test_a_private_run_goes_from_records_to_scores(dataset: str, model: str, size: dict[str, int]) -> None:
    workload = build(dataset, model, source=StandIn(records=12), **size)
    before = {name: p.detach().clone() for name, p in workload.model.named_parameters()}
    settings = TrainSettings(
        epsilon=8, delta=1e-5, batch_size=4, lr=1e-3, steps=2, microbatch=3, weight_decay=0.01, clipping="block-wise"
    )
    result = train_cell(workload, experiment="a table", cell={"model": model}, settings=settings)
    assert result.groups == 12 and result.privacy["epsilon"] <= 8
    frozen = set(workload.description["frozen"])  # type: ignore[arg-type]
    assert frozen == ({"cls_token", "pos_embed"} if dataset == "gtsrb" else set())
    for name, p in workload.model.named_parameters():
        assert torch.equal(p, before[name]) == (name in frozen), name  # noise reaches every number that trains
    assert result.metrics and all(0 <= score <= 100 for score in result.metrics.values())


def trained(workload: Workload, records: list[object], lr: float) -> None:
    """Plain training on all ``records`` at once until they are known by heart."""
    optimizer = torch.optim.Adam([p for p in workload.model.parameters() if p.requires_grad], lr=lr)
    batch = workload.collate(records)
    workload.model.eval()  # no dropout
    for _ in range(600):
        optimizer.zero_grad()
        losses = workload.losses(workload.model, batch)
        losses.mean().backward()
        if losses.max() < 0.05:
            return
        optimizer.step()
    raise AssertionError(f"not learnt: {losses.max():.2f}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", ["roberta-base", "roberta-base-head"])
def test_labels_that_are_learnt_are_the_labels_that_are_scored(model: str) -> None:
    workload = build("mnli", model, source=StandIn(records=9), length=48)
    trained(workload, [workload.train[i] for i in range(9)], lr=1e-3)
    # the twin: on other made sentences, whose labels say nothing, three classes are guessed
    test = workload.evaluate.keywords["tests"]  # type: ignore[attr-defined]
    collate = workload.evaluate.keywords["collate"]  # type: ignore[attr-defined]
    score = workload.evaluate.func  # type: ignore[attr-defined]
    assert score(workload.model, {"seen": workload.train}, collate) == {"seen": 100}
    assert score(workload.model, test, collate)["accuracy_matched"] < 100


def test_texts_that_are_learnt_are_the_texts_that_are_said() -> None:
    workload = build("e2e", "gpt2-small", source=StandIn(records=4), length=64)
    pairs = [("name[Zizzi], food[French]", "Zizzi is French."), ("name[The Eagle]", "The Eagle was dull, and quiet.")]
    trained(workload, list(pairs), lr=3e-3)
    collate = workload.collate
    assert generate(workload.model, [table for table, _ in pairs], collate, 20) == [text for _, text in pairs]  # type: ignore[arg-type]
