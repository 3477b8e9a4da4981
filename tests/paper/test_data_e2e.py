"""Tables to text: what is read, what is predicted, a loss of each record alone, and beam search from padded prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from groupclip.paper.build import build
from groupclip.paper.data.e2e import PairBatches, Pairs, generate, linearised, losses, references, score
from groupclip.paper.source import StandIn
from groupclip.paper.tokenizers import made_tokenizer
from groupclip.paper.workload import Workload

TOKENIZER = made_tokenizer("gpt2")
END = TOKENIZER.eos_token_id
TABLE = "name[The Vaults], eatType[pub], priceRange[more than £30], customer rating[5 out of 5], near[Café Adriatic]"


@pytest.fixture(scope="module")
def workload() -> Workload:
    found = build("e2e", "gpt2-small", source=StandIn(records=6), length=64)
    found.model.double().eval()
    return found


def test_tables_are_written_out() -> None:
    assert linearised(TABLE) == (
        "name : The Vaults | eatType : pub | priceRange : more than £30 | customer rating : 5 out of 5 | near : Café Adriatic"
    )
    assert linearised("name[A, B], food[]") == "name : A, B | food : "


def test_the_reference_and_its_end_are_predicted_and_nothing_else() -> None:
    collate = PairBatches(TOKENIZER, 100)
    ids, mask, labels = collate([("name[Zizzi]", "Zizzi is warm."), (TABLE, "A pub.")])
    read = TOKENIZER.decode(ids[0][mask[0] == 1])
    assert read == " name : Zizzi<|endoftext|> Zizzi is warm.<|endoftext|>"
    for row, text in zip(range(2), (" Zizzi is warm.<|endoftext|>", " A pub.<|endoftext|>"), strict=True):
        assert TOKENIZER.decode(labels[row][labels[row] != -100]) == text
        assert torch.equal(labels[row][labels[row] != -100], ids[row][labels[row] != -100])
    assert (labels[mask == 0] == -100).all() and (ids[mask == 0] == END).all()


def test_records_are_cut_at_the_length(workload: Workload) -> None:
    collate = PairBatches(TOKENIZER, 24)
    ids, _, labels = collate([("name[Zizzi]", "warm " * 60), ("name[" + "Zizzi " * 60 + "]", "warm")])
    assert ids.shape == (2, 24)
    assert labels[0, -1] == ids[0, -1] != END  # cut within the reference
    assert (labels[1] == -100).all()  # nothing but table is left
    found = losses(workload.model, (ids, torch.ones_like(ids), labels))
    assert found[0] > 0 and found[1] == 0


def test_a_loss_is_the_mean_over_a_records_own_tokens(workload: Workload) -> None:
    pairs = [("name[Zizzi]", "Zizzi is warm."), (TABLE, "A pub in the city centre area with cheap prices.")]
    batch = workload.collate(pairs)
    found = workload.losses(workload.model, batch)
    for row, pair in enumerate(pairs):
        ids, _, labels = (t[0] for t in workload.collate([pair]))
        scores = workload.model(input_ids=ids[None]).logits[0].log_softmax(-1)
        places = [t for t in range(1, len(ids)) if labels[t] != -100]
        assert len(places) == len(TOKENIZER(f" {pair[1]}")["input_ids"]) + 1
        expected = -sum(scores[t - 1, ids[t]] for t in places) / len(places)
        assert torch.isclose(found[row], expected, rtol=1e-10)


def test_beam_search_from_padded_prompts_is_that_from_each_alone(workload: Workload) -> None:
    collate: Any = workload.collate
    tables = ["name[Zizzi]", TABLE, "name[Giraffe], food[French]"]
    # weights that say something: a head that favours some words after some others
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for p in workload.model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    together = generate(workload.model, tables, collate, 6)
    alone = [generate(workload.model, [table], collate, 6)[0] for table in tables]
    assert together == alone
    assert len(set(together)) > 1
    assert not any("\n" in text for text in together)


def test_beam_search_looks_beyond_the_likeliest_word_and_breaks_no_line() -> None:
    """Word for word: after the prompt a line break 0.4, A 0.35, B 0.25; after A ten words, 0.1 each; else surely C."""
    model = build("e2e", "gpt2-small", source=StandIn(records=2), length=32).model
    a, b, c = (TOKENIZER(text)["input_ids"][0] for text in (" is", " was", " dull"))
    others = [token for token in range(300, 320) if token not in (a, b, c)][:10]
    line = TOKENIZER("\n")["input_ids"][0]
    chances = torch.full((len(TOKENIZER), len(TOKENIZER)), 1e-9)
    chances[END, line], chances[END, a], chances[END, b] = 0.4, 0.35, 0.25
    chances[a, others] = 0.1
    chances[b, c] = chances[line, c] = 1

    def say(module: Any, arguments: Any, given: dict[str, Any], output: Any) -> Any:
        output.logits = chances[given["input_ids"]].log()
        return output

    handle = model.register_forward_hook(say, with_kwargs=True)
    try:
        assert generate(model, ["name[Zizzi]"], PairBatches(TOKENIZER, 32), 2) == ["was dull"]
    finally:
        handle.remove()


def test_every_table_is_scored_once_against_all_its_references() -> None:
    rows = [("a[1]", "x"), ("b[2]", "y"), ("a[1]", "z"), ("b[2]", "y")]
    pairs = Pairs([{"mr": table, "ref": text} for table, text in rows], ("mr", "ref"))
    assert references(pairs) == {"a[1]": ["x", "z"], "b[2]": ["y", "y"]}
    assert pairs[1:3] == rows[1:3] and list(pairs) == rows


def test_scores_are_those_of_what_was_generated(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a[1]", "one two three four"), ("b[2]", "five six seven eight"), ("a[1]", "nine")]
    pairs = Pairs([{"mr": table, "ref": text} for table, text in rows], ("mr", "ref"))
    said = {"a[1]": "One two three four", "b[2]": "five six seven eight"}
    monkeypatch.setattr("groupclip.paper.data.e2e.generate", lambda model, tables, *_: [said[t] for t in tables])
    assert score(workload.model, pairs, workload.collate, ("bleu",)) == {"bleu": pytest.approx(100)}  # type: ignore[arg-type]
