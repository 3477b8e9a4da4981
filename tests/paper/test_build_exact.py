"""One private step of the paper's models on the paper's data equals single samples, and check finds nothing.

In the paper's own setting: automatic clipping at R / sqrt(M), stand-ins with as many layers, without dropout (the oracle
would draw other masks).
"""

from __future__ import annotations

import math

import pytest
import torch

import groupclip as gc
import oracle
from check_engine import clipped_by_engine, faults, members
from groupclip.paper.build import FITS, build
from groupclip.paper.data.facts import DATASETS
from groupclip.paper.pretrained import MODELS
from groupclip.paper.source import StandIn

torch.set_num_threads(1)
SHORT = {"image": {"image_size": 32}, "sentences": {"length": 32}, "table-to-text": {"length": 48}}
PAIRS = [(d, m) for d, facts in DATASETS.items() for m, kind in MODELS.items() if FITS[kind.family] == facts.kind]
QUICK = {
    ("cifar10", "vit-small"), ("mnli", "roberta-base"), ("sst2", "roberta-base-head"),
    ("e2e", "gpt2-small"), ("e2e", "gpt2-small-tied"),
}  # fmt: skip
EACH = [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dataset", "model"), EACH)
def test_a_private_step_equals_single_samples(dataset: str, model: str) -> None:
    workload = build(dataset, model, source=StandIn(records=4), **SHORT[DATASETS[dataset].kind])
    net = workload.model.double().eval()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))  # away from biases of zero and weights of one
    batch = tuple(
        t.double() if t.is_floating_point() else t for t in workload.collate([workload.train[i] for i in range(3)])
    )
    samples = oracle.per_sample_gradients(net, workload.losses, batch)
    shapes = {name: p.shape for name, p in net.named_parameters() if p.requires_grad}
    for style in ("all-layer", "block-wise", "layer-wise", "param-wise"):
        groups = gc.partition(net, style)
        want = oracle.clipped(samples, shapes, members(groups))
        got = clipped_by_engine(net, workload.losses, batch, groups, "automatic", 1.0, split=[2, 1])
        assert faults(got, want, groups, dict.fromkeys(groups, 1 / math.sqrt(len(groups))), 1e-10) == [], style


@pytest.mark.one_in(3, first=1)
@pytest.mark.parametrize(("dataset", "model"), EACH)
def test_check_finds_that_samples_are_kept_apart(dataset: str, model: str) -> None:
    workload = build(dataset, model, source=StandIn(records=4), **SHORT[DATASETS[dataset].kind])
    batch = workload.collate([workload.train[i] for i in range(3)])
    report = gc.check(workload.model, lambda net, *parts: workload.losses(net, parts), batch, "block-wise", samples=2)
    assert report.warnings == ()
    assert len(report.uses) == sum(p.requires_grad for p in workload.model.parameters())


def test_check_refuses_a_loss_whose_mean_is_over_the_tokens_of_the_batch() -> None:
    """The twin: the loss that language-model code usually takes mixes samples through its denominator."""
    workload = build("e2e", "gpt2-small", source=StandIn(records=6), length=48)
    batch = workload.collate([workload.train[i] for i in range(3)])
    lengths = (batch[2] != -100).sum(1)
    assert len(lengths.unique()) > 1

    def mixed(net: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = net(input_ids=ids, attention_mask=mask).logits[:, :-1].transpose(1, 2)
        each = torch.nn.functional.cross_entropy(logits, labels[:, 1:], ignore_index=-100, reduction="none")
        return len(ids) * each.sum(1) / (labels != -100).sum()

    with pytest.raises(gc.PrivacyViolation, match="loss"):
        gc.check(workload.model, mixed, batch, "block-wise", samples=2)
