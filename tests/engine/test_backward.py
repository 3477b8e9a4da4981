"""Clipped sums and norms equal the per-sample loop: every style, clip function, split and norm method."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch

import oracle
from check_engine import (
    CORE,
    ENTRIES,
    STYLES,
    B,
    case,
    clipped_by_engine,
    clipped_by_engine_in_splits,
    faults,
    grouped,
    members,
    styles_of,
)
from groupclip.persample.norms import GRAM, INSTANTIATED

SPLITS = ((6,), (2, 2, 2), (1, 5), (4, 0, 2))
CORE_STYLES = [(name, style) for name in CORE for style in styles_of(name)]
OTHERS = [name for name in ENTRIES if name not in CORE]
NO_EMPTY_BATCH = ("norms",)  # torch's own InstanceNorm fails on an empty batch


def disagreements(
    name: str,
    style: str,
    clip: str,
    splits: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
    tolerance: float,
    methods: str = "",
) -> list[str]:
    """Of one engine and the loop, over several splits of the same batch."""
    want, entry = case(name, style, clip), ENTRIES[name]
    groups, batch = want.groups, entry.batch(B, dtype)
    if methods:
        groups = groups.with_methods({p: methods for group in groups for p in groups[group]})
    thresholds = want.thresholds
    results = clipped_by_engine_in_splits(entry.model(dtype), entry.losses, batch, groups, clip, thresholds, splits)
    return [
        f"{split}: {fault}"
        for split, got in zip(splits, results, strict=True)
        for fault in faults(got, want.reference, groups, thresholds, tolerance)
    ]


# ------------------------------------------------------------------ the core models


@pytest.mark.one_in(4)
@pytest.mark.parametrize("clip", oracle.CLIP)
@pytest.mark.parametrize(("name", "style"), CORE_STYLES)
def test_equals_the_loop_in_float64(name: str, style: str, clip: str) -> None:
    first = list(oracle.CLIP).index(clip)  # what the engine sees first may be a whole batch or one sample
    assert disagreements(name, style, clip, SPLITS[first:] + SPLITS[:first], torch.float64, 1e-10) == []


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "style"), CORE_STYLES)
def test_equals_the_loop_in_float32(name: str, style: str) -> None:
    """Every clip function; to 2e-5 of R. One split that has micro-batches of every kind will do."""
    for clip in oracle.CLIP:
        assert disagreements(name, style, clip, [(1, 0, 5)], torch.float32, 2e-5) == []


@pytest.mark.one_in(6)
@pytest.mark.parametrize("method", [GRAM, INSTANTIATED])
@pytest.mark.parametrize(("name", "style"), CORE_STYLES)
def test_both_norm_methods_equal_the_loop(name: str, style: str, method: str) -> None:
    for clip in ("automatic", "abadi"):
        assert disagreements(name, style, clip, [(2, 4)], torch.float64, 1e-10, method) == []
    assert disagreements(name, style, "automatic", [(6,)], torch.float32, 2e-5, method) == []


@pytest.mark.parametrize(("name", "style"), CORE_STYLES)
def test_the_thresholds_clip_some_samples_and_not_others(name: str, style: str) -> None:
    """Else the tests above would compare all-clipped with all-clipped."""
    want = case(name, style, "abadi")
    for group, norms in want.reference.norms.items():
        assert 0 < (norms > want.thresholds[group]).sum() < B, group


# ------------------------------------------------------------------ the rest of the catalogue


@pytest.mark.one_in(3)
@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise", "mapping"])
@pytest.mark.parametrize("name", OTHERS)
def test_every_use_of_a_parameter_equals_the_loop(name: str, style: str) -> None:
    for clip in ("automatic", "abadi"):
        assert disagreements(name, style, clip, [(6,), (1, 5)], torch.float64, 1e-10) == []
    # Factors are shortened by the room that Gram norms need in float32 (SECURITY.md), a little more where uses nearly cancel.
    assert disagreements(name, style, "automatic", [(2, 4)], torch.float32, 2e-5) == []


@pytest.mark.parametrize("method", [GRAM, INSTANTIATED])
@pytest.mark.parametrize("name", OTHERS)
def test_every_use_of_a_parameter_by_both_norm_methods(name: str, method: str) -> None:
    for style in ("all-layer", "param-wise"):
        assert disagreements(name, style, "abadi", [(6,)], torch.float64, 1e-10, method) == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_batch_as_long_as_any_other_dimension(name: str) -> None:
    """The batch must not be guessed from its length: B = 1 .. 9 meets T, d, V and their multiples."""
    for size in (1, 2, 3, 4, 5, 7, 8, 9):
        want, entry = case(name, "param-wise", "automatic", size), ENTRIES[name]
        batch = entry.batch(size, torch.float64)
        got = clipped_by_engine(
            entry.model(torch.float64), entry.losses, batch, want.groups, "automatic", want.thresholds
        )
        assert faults(got, want.reference, want.groups, want.thresholds, 1e-10) == [], f"B={size}"


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in NO_EMPTY_BATCH])
def test_an_empty_batch_adds_nothing(name: str) -> None:
    entry = ENTRIES[name]
    for style in ("all-layer", "param-wise"):
        model = entry.model()
        groups = grouped(model, style)
        got = clipped_by_engine(model, entry.losses, entry.batch(0), groups)
        assert all(torch.equal(total, torch.zeros_like(total)) for total in got.sums.values())
        assert all(norms.shape == (0,) for norms in got.norms.values())


# ------------------------------------------------------------------ the whole product


@pytest.mark.slow
@pytest.mark.parametrize("clip", oracle.CLIP)
@pytest.mark.parametrize("name", ENTRIES)
def test_the_whole_product(name: str, clip: str) -> None:
    for style in styles_of(name):
        if style in ("boundaries:1", "uniform:2") and not _has_two_layers(name):
            continue
        splits = SPLITS if name not in NO_EMPTY_BATCH else SPLITS[:3]
        for method in ("", GRAM, INSTANTIATED):
            assert disagreements(name, style, clip, splits, torch.float64, 1e-10, method) == [], (style, method)
            assert disagreements(name, style, clip, splits, torch.float32, 2e-5, method) == [], (style, method)


def _has_two_layers(name: str) -> bool:
    return len(grouped(ENTRIES[name].model(), "layer-wise")) > 1


# ------------------------------------------------------------------ the judge can say no


def test_twin_a_slightly_wrong_sum_or_norm_is_seen() -> None:
    """What `faults` must reject: 2e-10 of R in float64, norms of another group, a missing sample."""
    want, entry = case("mlp", "layer-wise", "abadi"), ENTRIES["mlp"]
    batch = entry.batch(B, torch.float64)
    got = clipped_by_engine(entry.model(torch.float64), entry.losses, batch, want.groups, "abadi", want.thresholds)

    def rejects(**changed: dict[str, torch.Tensor]) -> bool:
        return bool(faults(dataclasses.replace(got, **changed), want.reference, want.groups, want.thresholds, 1e-10))

    group = want.groups.names[0]
    name = want.groups[group][0]
    assert not rejects()
    assert rejects(sums=got.sums | {name: got.sums[name] + 2e-10 * want.thresholds[group]})
    assert rejects(sums={n: s for n, s in got.sums.items() if n != name})
    assert rejects(norms=got.norms | {group: got.norms[group] * (1 + 2e-10) + 2e-10})
    assert rejects(norms=got.norms | {group: got.norms[group][1:]})
    assert rejects(norms=got.norms | {group: got.norms[group].where(torch.arange(B) > 0, math.nan)})
    assert rejects(norms=dict.fromkeys(got.norms, got.norms[group]))


def test_twin_clipping_apart_what_is_one_group_is_seen() -> None:
    """Each parameter clipped by its own norm isn't the group clipped by its: the loop tells them apart."""
    name, entry = "mlp", ENTRIES["mlp"]
    want = case(name, "all-layer", "automatic")
    model, batch = entry.model(torch.float64), entry.batch(B, torch.float64)
    apart = grouped(model, "param-wise")
    reference = oracle.clipped_sum(
        model, entry.losses, batch, members(apart), "automatic", dict.fromkeys(apart, want.thresholds["all"])
    )
    worst = max((reference.sums[n] - want.reference.sums[n]).abs().max() for n in reference.sums)
    assert worst > 0.1 * want.thresholds["all"]


def test_every_style_is_covered() -> None:
    assert {style for _, style in CORE_STYLES} == set(STYLES)
