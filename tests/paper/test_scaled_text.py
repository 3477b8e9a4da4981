"""The scaled text experiments on made-up data: the same code as with real data, in seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import groupclip as gc
from groupclip.paper.scaled import e2e, e2e_data, e2e_pretraining, text, text_data, text_made, text_model, vision
from groupclip.paper.scaled.experiment import ScaledCell
from groupclip.paper.source import MissingSource
from groupclip.paper.trainer import train_cell


@pytest.fixture(scope="module")
def phrases(tmp_path_factory: pytest.TempPathFactory) -> list[ScaledCell]:
    return text.smoke_cells(tmp_path_factory.mktemp("sst2"))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[ScaledCell]:
    return e2e.smoke_cells(tmp_path_factory.mktemp("e2e"))


def _run(cell: ScaledCell, name: str, folder: Path | None = None):
    return train_cell(cell.build(), experiment=name, cell=cell.cell, settings=cell.settings, folder=folder)


@pytest.mark.parametrize("one_in", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_smoke_cell_of_sst2_trains_and_spends_what_it_may(phrases: list[ScaledCell], one_in: int) -> None:
    assert len({cell.cell["epsilon"] is None for cell in phrases[::one_in]}) == 2  # with privacy and without
    for cell in phrases[::one_in]:
        result = _run(cell, text.NAME)
        assert set(result.metrics) == {"accuracy", "auc", "loss", "called_positive"}
        if cell.cell["epsilon"] is None:
            assert result.privacy == {} and result.groups == 0
        else:
            assert 0.9 * 8 < result.privacy["epsilon"] <= 8
            assert result.privacy["sampling"] == "groupclip"


@pytest.mark.parametrize("one_in", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_smoke_cell_of_e2e_trains_and_spends_what_it_may(tables: list[ScaledCell], one_in: int) -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    assert len({cell.cell["epsilon"] is None for cell in tables[::one_in]}) == 2
    for cell in tables[::one_in]:
        result = _run(cell, e2e.NAME)
        assert set(result.metrics) == {"loss", "perplexity", "bleu", "rouge_l"}
        if cell.cell["epsilon"] is not None:
            assert 0.9 * 8 < result.privacy["epsilon"] <= 8


def test_a_whole_experiment_has_no_cell_twice() -> None:
    for cells in (text.real_cells(Path("data"), Path("kept")), e2e.real_cells(Path("data"), Path("kept"))):
        names = [tuple(sorted(cell.cell.items(), key=str)) for cell in cells]
        assert len(set(names)) == len(names)


def test_a_longer_neighbour_changes_no_gradient_of_a_phrase() -> None:
    model, _ = text_made.tiny_bert()
    torch.nn.init.normal_(model.head.weight)
    short, long = text_data.Phrase((2, 3, 4), 1), text_data.Phrase((5, 6, 7, 8, 9, 3, 2), 0)
    assert _largest_change(model, text.losses, text_data.phrases, short, long) < 0.02  # bfloat16: 3 significant digits


def test_upper_blocks_go_on_where_frozen_ones_stopped() -> None:
    model, _ = text_made.tiny_bert()
    torch.nn.init.normal_(model.head.weight)
    records = [text_data.Phrase((2, 3, 4), 1, 0), text_data.Phrase((5, 6, 7, 8, 9), 0, 1)]
    whole = text_model.logits(model, *text_data.phrases(records)[:2])
    states = text_model.read(model, records, frozen=2)
    assert [tuple(r.states.shape) for r in states] == [(3, 16), (5, 16)]
    parts = text_model.logits(text_model.upper(model, frozen=2), *text_data.collate(states)[:2])
    torch.testing.assert_close(parts, whole, rtol=0.02, atol=0.02)  # bfloat16


def test_a_longer_neighbour_changes_no_gradient_of_a_pair() -> None:
    torch.manual_seed(0)
    model = e2e_pretraining.gpt2(e2e.SMOKE.shapes["gpt2-tiny"])
    short, long = e2e_data.Record((5, 6, 0, 7, 8, 0), 3), e2e_data.Record((*range(5, 25), 0), 9)
    assert _largest_change(model, e2e_pretraining.losses, e2e_data.collate, short, long) < 0.02


def _largest_change(model, losses, collate, record, other) -> float:
    """Of the record's gradient when another is in the batch, relative to its norm."""

    def gradient(*records) -> torch.Tensor:
        trained = [p for p in model.parameters() if p.requires_grad]
        loss = losses(model, collate(records))[0]
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        return torch.cat([g.flatten() for g in parts if g is not None])

    alone = gradient(record)
    assert alone.norm() > 0
    return float((gradient(record, other) - alone).norm() / alone.norm())


def test_what_frozen_blocks_made_is_read_again_and_of_the_same_texts_alone(tmp_path: Path) -> None:
    model, _ = text_made.tiny_bert()
    records = [text_data.Phrase((2, 3, 4), 1, 0), text_data.Phrase((5, 6, 7, 8, 9), 0, 1)]
    first = text_model.read_once(tmp_path / "states", model, records, 1)
    again = text_model.read_once(tmp_path / "states", model, records, 1)
    assert [(r.label, r.place) for r in again] == [(1, 0), (0, 1)]
    assert all(torch.equal(a.states, b.states) for a, b in zip(first, again, strict=True))
    with pytest.raises(MissingSource, match="other texts"):
        text_model.read_once(tmp_path / "states", model, records[:1], 1)


def test_tables_hide_names_and_show_them_again() -> None:
    table = e2e_data.read_table("name[Blue Spice], near[The Blue Spice Inn], food[French]")
    assert table.prompt == "name : <name> | near : <near> | food : french"
    hidden = table.hide("Blue Spice is near The Blue Spice Inn.")
    assert hidden == "<name> is near <near>."
    assert table.show(hidden) == "blue spice is near the blue spice inn."


def test_keywords_come_from_the_sentence() -> None:
    draw = random.Random(1)
    sentence = "two men in red coats walk over an old bridge"
    for _ in range(50):
        prompt, said = e2e_pretraining.keywords(sentence, draw)
        values = [part.split(" : ", 1)[1] for part in prompt.split(" | ")]
        assert 1 <= len(values) <= 6
        assert all(value in said for value in values)


def test_pairs_predict_their_text_and_its_end_alone() -> None:
    ids, mask, labels = e2e_data.collate([e2e_data.Record((5, 6, 0, 7, 8, 0), 3), e2e_data.Record((5, 0, 7, 0), 2)])
    ignored = e2e_data.IGNORED
    assert labels.tolist() == [[ignored] * 3 + [7, 8, 0], [ignored, ignored, 7, 0, ignored, ignored]]
    assert mask.tolist() == [[1] * 6, [1, 1, 1, 1, 0, 0]]
    assert ids.shape == labels.shape


def test_the_engine_agrees_with_single_samples(phrases: list[ScaledCell], tables: list[ScaledCell]) -> None:
    """On what the cells train, in the precision they train in."""
    for cell in (phrases[0], tables[0]):
        workload = cell.build()
        batch = workload.collate([workload.train[i] for i in (0, 20, 40, 59)])

        def losses(model, *tensors, told=workload.losses):
            return told(model, tensors)

        report = gc.check(workload.model, losses, batch, "layer-wise")
        assert report.replayed and not report.warnings


def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingSource, match=r"sst2\.jsonl\.gz"):
        text_data.read_sst2(tmp_path)
    with pytest.raises(MissingSource, match="vaderSentiment"):
        text.build(text.SMOKE, text.Folders(tmp_path, tmp_path), 2, balance=False)


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    """And each of them is in the table of the page that the message names."""
    page = (Path(__file__).parents[2] / "docs/reproduction-data.md").read_text()
    twins = {
        text: {text_data.SST2, *text.PUBLIC},
        e2e: {e2e.E2E, *e2e.PUBLIC},
        vision: {vision.PUBLIC, vision.PRIVATE},
    }
    for twin, names in twins.items():
        build = twin.real_cells(tmp_path, tmp_path / "made")[0].build
        with pytest.raises(MissingSource, match=r"docs/reproduction-data\.md") as refusal:
            build()
        assert all(name in str(refusal.value) and f"`{name}`" in page for name in names)
        there = sorted(names)[0]
        (tmp_path / there).write_text("")
        with pytest.raises(MissingSource, match=f"lacks {len(names) - 1} of the {len(names)} files") as refusal:
            build()
        assert f"{there} (" not in str(refusal.value)


def test_what_was_made_once_needs_no_public_files(tmp_path: Path) -> None:
    cell = e2e.smoke_cells(tmp_path)[0]
    cell.build()
    for name in e2e.PUBLIC:
        (tmp_path / name).unlink()
    e2e._public_model.cache_clear()
    cell.build()


def test_the_area_counts_pairs_in_the_right_order() -> None:
    labels = torch.tensor([1, 0, 1, 0])
    assert text_model.area(torch.tensor([3.0, 1.0, 2.0, 0.0]), labels) == 1.0
    assert text_model.area(torch.tensor([3.0, 2.0, 1.0, 1.0]), labels) == 0.625  # won, won; lost, even


def test_a_balanced_part_has_as_many_of_either_label() -> None:
    labels = [1, 0, 1, 0, 1]
    records = [text_data.Read(torch.zeros(1, 2), label, place) for place, label in enumerate(labels)][::-1]
    assert [r.place for r in text_data.balanced(records, 2)] == [3, 2, 1, 0]
    with pytest.raises(ValueError, match="fewer than 3"):
        text_data.balanced(records, 3)
