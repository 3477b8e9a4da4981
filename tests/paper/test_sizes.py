"""Does the gap shrink with size: runs are paired, go on where they were, and the page says what their gaps say."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from benchmark import benchmark
from groupclip.paper.results import Result, gathered, load_all
from groupclip.paper.scaled.text_made import tiny_bert, write_made
from groupclip.paper.scaled.vision_made import write_made as write_images
from groupclip.paper.sizes import families, report
from groupclip.paper.sizes.report import ALL, LAYER, PARAM, PLANNED, Estimate


@pytest.fixture
def module(monkeypatch):
    """The program, with tiny models and few records."""
    found = benchmark("sizes")
    monkeypatch.setattr(families, "HELD_OUT", 20)
    tiny = {
        "minilm": dataclasses.replace(
            families.FAMILIES["minilm"], sizes=("top1", "top2"), planned="top1", records=60, batch_size=20, steps=2, microbatch=16,
            make=tiny_bert,
        ),
        "cnn": dataclasses.replace(
            families.FAMILIES["cnn"], sizes=("cnn-4", "cnn-8"), planned="cnn-8", records=100, batch_size=20, steps=2, microbatch=16,
        ),
    }  # fmt: skip
    monkeypatch.setattr(found, "FAMILIES", tiny)
    monkeypatch.setattr(report, "FAMILIES", tiny)
    return found


@pytest.fixture
def data(tmp_path):
    write_made(tmp_path, train=200, dev=2)
    write_images(tmp_path / families.FASHION, classes=10, train=120, test=40, seed=1)
    return tmp_path


def test_every_run_is_made_once_and_the_page_has_its_tables(module, data, monkeypatch):
    out = data / "out"
    module.measure(data, out, ("minilm", "cnn"), seeds=2, other_seeds=1)
    results = load_all(out, "sizes")
    # in two seeds and two families: three styles in two sizes and planned groups in one; the second rate's four
    assert len(results) == 2 * 2 * 7 + 2 * 4
    assert all(r.privacy["keys"] == "known" and "epsilon" not in r.privacy for r in results)
    assert all(math.isfinite(r.metrics["loss"]) and 0 <= r.metrics["accuracy"] <= 100 for r in results)
    made = report.values(results)
    assert "not run" not in made["GAPS"] and made["SLOPES"].count("\n") == 1 + 2 * (5 + 2)
    assert made["PLANNED"].count("\n") == 1 + 2 * 3 and made["RATES"].count("\n") == 1 + 2 * 2 * 2
    monkeypatch.setattr(module.gc, "attach", None)  # nothing is run a second time
    module.measure(data, out, ("minilm", "cnn"), seeds=2, other_seeds=1)
    assert load_all(out, "sizes") == results


@pytest.mark.parametrize("family", ["minilm", "cnn"])
def test_styles_of_one_seed_have_the_same_head_batches_and_noise(module, data, family):
    """With losses that don't hang on the weights a step is the noise alone: it is the same to the bit whatever the groups."""
    of = module.FAMILIES[family]
    task = of.load(data, of)[of.planned]
    drawn: list[list[int]] = []

    def nothing(model, batch):
        drawn[-1].append(len(batch[-1]))
        return 0.0 * task.losses(model, batch)

    blank = dataclasses.replace(task, losses=nothing)
    found = []
    for style, seed in ((ALL, 0), (LAYER, 0), (PARAM, 0), (PLANNED, 0), (ALL, 1)):
        drawn.append([])
        model, _ = module.train(blank, of, {"style": style, "seed": seed, "lr": 0.1})
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert all(torch.equal(weights, found[0]) for weights in found[1:4])
    assert not torch.equal(found[4], found[0])
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3] != drawn[4]


def test_planned_groups_need_no_more_than_layer_wise_ones(module, data):
    of = module.FAMILIES["cnn"]
    task = of.load(data, of)["cnn-8"]
    planned, layers, one = (module.groups_of(style, task) for style in (PLANNED, LAYER, ALL))
    assert module.peak(task, planned) <= module.peak(task, layers) <= module.peak(task, one)
    assert len(planned) < len(layers)


def test_held_out_phrases_are_short_balanced_and_apart(data):
    from groupclip.paper.scaled.text_data import Phrase

    phrases = [Phrase((1,) * (3 + i % 8), int(i % 3 == 0), i) for i in range(9_000)]
    private, held_out = families.parts(phrases, 1_000)
    assert len(held_out) == families.HELD_OUT and len(private) == 1_000
    assert sum(p.label for p in private) == 500
    assert max(len(p.ids) for p in private + held_out) <= families.TOKENS
    assert max(p.place for p in private) < min(p.place for p in held_out)
    with pytest.raises(ValueError, match="short phrases have label 0, but 4000 are needed"):
        families.parts(phrases, 8_000)


def test_the_offset_has_the_least_loss_and_takes_a_common_shift_out():
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 1]).repeat(40)
    margins = 2 * torch.randn(120, generator=draw, dtype=torch.double) + labels
    offset = families.best_offset(margins, labels)

    def loss(moved: torch.Tensor) -> float:
        return torch.nn.functional.binary_cross_entropy_with_logits(margins + moved, labels.double()).item()

    assert all(loss(offset) < loss(offset + other) for other in (-1.0, -0.01, 0.01, 1.0))
    assert families.best_offset(margins + 7.0, labels).item() == pytest.approx(offset.item() - 7.0, abs=1e-9)


# ------------------------------------------------------------------------------------------------------- what the page says


def result(size: str, style: str, seed: int, loss: float, parameters: int) -> Result:
    cell = {"family": "cnn", "size": size, "style": style, "lr": families.FAMILIES["cnn"].rates[0], "seed": seed}
    settings = {"trained_parameters": parameters, "records": 10}
    return Result(
        experiment="sizes", cell=cell, settings=settings, privacy={"noise_multiplier": 1.0, "noise_of_epsilon": 3.0}, groups=1,
        metrics={"loss": loss, "accuracy": 100 - 10 * loss}, seconds=1.0, peak_bytes=10, environment={"processor": "a"},
    )  # fmt: skip


def runs_with(gaps: dict[str, float], noise: float) -> report.Runs:
    """Gaps by size, the larger by twice the parameters, with equal noise on both styles of a seed and a little on the gap."""
    made = []
    for seed in range(4):
        for place, (size, gap) in enumerate(gaps.items()):
            base = 0.5 + noise * math.sin(9 * seed + place)
            made.append(result(size, ALL, seed, base, 1000 * 2**place))
            made.append(result(size, PARAM, seed, base + gap + 0.001 * math.cos(5 * seed + 3 * place), 1000 * 2**place))
    return report.Runs(made, "cnn", families.FAMILIES["cnn"].rates[0])


@pytest.mark.parametrize(
    ("gaps", "said"),
    [((0.01, 0.03, 0.05), "grows"), ((0.05, 0.03, 0.01), "shrinks"), ((0.03, 0.03, 0.03), "not decided")],
)
def test_the_slope_of_paired_gaps_decides(gaps, said):
    """Noise that both styles share, forty times as large as a gap, doesn't blur the slope; gaps of equal size decide nothing."""
    runs = runs_with(dict(zip(families.FAMILIES["cnn"].sizes, gaps, strict=True)), noise=0.4)
    slope = runs.slope(PARAM, "loss")
    assert slope is not None and slope.mean == pytest.approx((gaps[-1] - gaps[0]) / 2, abs=0.001)
    assert report.verdict(slope) == said
    less_accurate = runs.slope(PARAM, "accuracy")
    assert less_accurate is not None and less_accurate.mean == pytest.approx(10 * slope.mean)


def test_seeds_that_one_size_lacks_are_left_out():
    runs = runs_with(dict(zip(families.FAMILIES["cnn"].sizes, (0.01, 0.03, 0.05), strict=True)), noise=0.4)
    del runs.runs["cnn-8", PARAM, 3]
    slope, gap = runs.slope(PARAM, "loss"), runs.gap("cnn-24", PARAM, "loss")
    assert slope is not None and len(slope.values) == 3
    assert gap is not None and len(gap.values) == 4


def test_an_interval_is_students():
    found = Estimate((1.0, 2.0, 3.0))
    assert found.error == pytest.approx(1 / math.sqrt(3)) and found.half == pytest.approx(4.303 / math.sqrt(3))
    assert found.sign == 0 and Estimate((1.9, 2.0, 2.1)).sign == 1 and Estimate((-1.9, -2.0, -2.1)).sign == -1
    assert Estimate((5.0,)).sign == 0  # one seed decides nothing


def test_what_the_page_says_in_words_is_what_was_measured():
    """That the gap of MiniLM grows at one rate and is a fraction at the other; what planned groups need and lose."""
    results = gathered(benchmark("sizes").DOCS / "reproduction" / "sizes.json")
    first, second = (report.Runs(results, "minilm", rate) for rate in families.FAMILIES["minilm"].rates)
    slope = first.slope(PARAM, "loss")
    assert slope is not None and len(slope.values) == 4 and report.verdict(slope) == "grows"
    assert min(slope.values) > 0  # "in every seed"
    for size in ("top1", "top6"):
        small, large = first.gap(size, PARAM, "accuracy"), second.gap(size, PARAM, "accuracy")
        assert small is not None and large is not None and large.mean < small.mean / 2
        for style in (ALL, PARAM):
            before, after = first.score(size, style, "accuracy"), second.score(size, style, "accuracy")
            assert before is not None and after is not None and after.mean > before.mean
    again = second.slope(PARAM, "accuracy")
    assert again is not None and report.verdict(again) != "grows"
    ahead = first.gap("top2", LAYER, "loss", base=PLANNED)
    assert ahead is not None and ahead.sign == 1
    for name, of in families.FAMILIES.items():
        family = report.Runs(results, name, of.rates[0])
        peaks = {style: family.runs[of.planned, style, 0].peak_bytes for style in (ALL, LAYER, PLANNED)}
        assert peaks[PLANNED] <= peaks[LAYER] < peaks[ALL]
        less_accurate = family.gap(of.planned, LAYER, "accuracy", base=PLANNED)
        assert less_accurate is not None and less_accurate.sign == 1
