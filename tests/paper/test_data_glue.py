"""Sentences in templates and with a head: what the model reads, how long texts are cut, how label words are told apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from groupclip.paper.build import build
from groupclip.paper.data.glue import (
    TEMPLATES,
    HeadBatches,
    InfillBatches,
    Infilling,
    head_losses,
    infill_logits,
    infill_losses,
    infill_score,
)
from groupclip.paper.data.records import WrongData
from groupclip.paper.source import StandIn
from groupclip.paper.tokenizers import made_tokenizer

TOKENIZER = made_tokenizer("roberta")


def read(dataset: str, *texts: str, length: int = 64) -> str:
    """The text that the model reads, special tokens included."""
    return TOKENIZER.decode(InfillBatches(TOKENIZER, length, TEMPLATES[dataset]).encode(texts))


@pytest.mark.parametrize(
    ("dataset", "texts", "expected"),
    [
        ("sst2", ("the film is warm .",), "<s>the film is warm . It was<mask>.</s>"),
        ("mnli", ("The film is warm.", "The Plot is dull ."), "<s>The film is warm?<mask>, the Plot is dull .</s>"),
        ("qnli", ("Is it warm?", "It was dull."), "<s>Is it warm?<mask>, it was dull.</s>"),
        ("qqp", ("Is it warm?", "Was it dull?"), "<s>Is it warm<mask>, was it dull?</s>"),
    ],
)
def test_what_the_model_reads(dataset: str, texts: tuple[str, ...], expected: str) -> None:
    assert read(dataset, *texts) == expected


def test_label_words_follow_the_hubs_labels() -> None:
    """GLUE on the hub: SST-2 0 negative; MNLI 0 entailment, 1 neutral, 2 contradiction; QNLI 0 entailment; QQP 1 duplicate."""
    words = {name: template.words for name, template in TEMPLATES.items()}
    assert words == {
        "sst2": (" terrible", " great"),
        "mnli": (" Yes", " Maybe", " No"),
        "qnli": (" Yes", " No"),
        "qqp": (" No", " Yes"),
    }
    for dataset, template in TEMPLATES.items():
        ids = InfillBatches(TOKENIZER, 64, template).words()
        assert [TOKENIZER.decode(i) for i in ids] == list(words[dataset])


def test_a_label_word_of_several_tokens_is_refused() -> None:
    template = dataclasses.replace(TEMPLATES["sst2"], words=(" incomprehensible", " great"))
    with pytest.raises(WrongData, match=r"' incomprehensible' is \d+ tokens of this tokenizer; it must be one"):
        InfillBatches(TOKENIZER, 64, template).words()


@pytest.mark.parametrize(("first", "second"), [(60, 60), (60, 3), (3, 60), (0, 60), (60, 0)])
def test_long_pairs_lose_the_end_of_the_longer_text_and_never_the_gap(first: int, second: int) -> None:
    words = [" warm", " dull"]
    found = read("mnli", "the" + words[0] * first, "the" + words[1] * second, length=32)
    assert (
        len(InfillBatches(TOKENIZER, 32, TEMPLATES["mnli"]).encode(("the" + " warm" * first, "the" + " dull" * second)))
        == 32
    )
    assert found.startswith("<s>the") and found.endswith("</s>") and found.count("<mask>") == 1
    before, after = found.removeprefix("<s>").removesuffix("</s>").split("<mask>")
    assert before.endswith("?") and after.startswith(", the")
    kept = found.count(" warm"), found.count(" dull")
    assert kept[0] == first or kept[1] == second or abs(kept[0] - kept[1]) <= 1  # equal shares if both are cut
    assert (kept[0] == first or kept[0] >= kept[1] - 1) and (kept[1] == second or kept[1] >= kept[0] - 1)


def test_infill_batches_are_padded_masked_and_know_their_gaps() -> None:
    collate = InfillBatches(TOKENIZER, 64, TEMPLATES["sst2"])
    ids, mask, gap, labels = collate([(("the film is warm .",), 1), (("dull",), 0)])
    assert labels.tolist() == [1, 0]
    assert ids.shape == mask.shape and torch.equal(ids == TOKENIZER.pad_token_id, mask == 0)
    assert (ids.gather(1, gap[:, None]) == TOKENIZER.mask_token_id).all()
    alone = collate([(("dull",), 0)])
    assert torch.equal(ids[1, : alone[0].shape[1]], alone[0][0])


def test_head_batches_frame_pairs_as_roberta_does() -> None:
    collate = HeadBatches(TOKENIZER, 24)
    ids, mask, labels = collate([(("the film", "the plot"), 2), (("warm " * 40, "dull " * 40), 0)])
    assert TOKENIZER.decode(ids[0][mask[0] == 1]) == "<s>the film</s></s>the plot</s>"
    assert ids.shape == (2, 24) and labels.tolist() == [2, 0]


class Masked(nn.Module):
    """A word predictor that only looks at the gap's hidden state, which is the one-hot place of the token."""

    class Body(nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            places = torch.eye(input_ids.shape[1]).expand(len(input_ids), -1, -1)
            return type("Output", (), {"last_hidden_state": places})

    def __init__(self) -> None:
        super().__init__()
        self.roberta = self.Body()
        self.scale = nn.Parameter(torch.ones(()))

    def lm_head(self, at_gap: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.nn.functional.pad(at_gap, (0, 3))


def test_the_classifier_reads_the_gap_and_compares_the_label_words_alone() -> None:
    model = Infilling(Masked(), torch.tensor([5, 2, 4]))
    ids, mask = torch.zeros(2, 6, dtype=torch.long), torch.ones(2, 6, dtype=torch.long)
    batch = (ids, mask, torch.tensor([2, 4]), torch.tensor([1, 0]))
    assert infill_logits(model, batch).tolist() == [[0, 1, 0], [0, 0, 1]]
    expected = torch.log(torch.tensor([2 + torch.e])) - torch.tensor([1.0, 0.0])
    assert torch.allclose(infill_losses(model, batch), expected)


@pytest.mark.parametrize("model", ["roberta-base", "roberta-base-head"])
def test_a_record_has_the_same_loss_alone_and_beside_a_longer_one(model: str) -> None:
    workload = build("qnli", model, source=StandIn(records=2), length=64)
    net = workload.model.double().eval()
    short, long = (("is it warm?", "yes"), 1), (("is it warm " * 6, "it was dull " * 6), 0)
    together = workload.losses(net, workload.collate([short, long]))
    alone = torch.cat([workload.losses(net, workload.collate([one])) for one in (short, long)])
    assert torch.allclose(together, alone, rtol=1e-10)
    assert not torch.isclose(together[0], together[1], rtol=1e-3)


def test_scores_are_in_percent_on_each_development_set() -> None:
    workload = build("mnli", "roberta-base", source=StandIn(records=3), length=32)
    collate = InfillBatches(TOKENIZER, 32, TEMPLATES["mnli"])
    texts = [(("the film", "the plot"), label) for label in (0, 1, 2)]
    found = infill_score(workload.model, {"a": texts, "b": [*texts, *texts[:1]]}, collate)  # type: ignore[dict-item]
    assert found["a"] == pytest.approx(100 / 3)  # the same text three times, with each label once
    assert found["b"] in (pytest.approx(50), pytest.approx(25))


def test_losses_of_the_head_are_cross_entropies() -> None:
    workload = build("sst2", "roberta-base-head", source=StandIn(records=4), length=32)
    batch = workload.collate([workload.train[i] for i in range(4)])
    net = workload.model.eval()
    scores = net(input_ids=batch[0], attention_mask=batch[1]).logits
    expected = scores.logsumexp(1) - scores.gather(1, batch[2][:, None]).squeeze(1)
    assert torch.allclose(head_losses(net, batch), expected)
