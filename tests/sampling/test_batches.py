"""Data sets, micro-batches, resuming, refusals, secrecy."""

import itertools
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from groupclip.errors import PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.batches import poisson_batches

KEY = bytes(range(32))


class Slow(TensorDataset):
    """A TensorDataset that isn't exactly one, so that it is read sample by sample."""


class Named(Dataset):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.full((2, 3), float(index)), "y": index, "name": f"sample {index}"}


class Many(Named):
    """Also fetches a list at once, as torch's loaders ask for."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, object]]:
        return [self[index] for index in indices]


PLAN = Mechanism(dataset_size=200, expected_batch_size=20, steps=8)
TENSORS = (torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200), torch.ones(200) > 0)


def contents(dataset, microbatch=7, **kwargs) -> list[list[object]]:
    return [list(batch) for batch in poisson_batches(dataset, PLAN, microbatch, key=KEY, **kwargs)]


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(itertools.starmap(same, zip(one, other, strict=True)))
    return one == other


def test_the_fast_path_gives_what_the_slow_one_gives():
    assert same(contents(TensorDataset(*TENSORS)), contents(Slow(*TENSORS)))
    assert same(contents(TensorDataset(*TENSORS)), contents(TensorDataset(*TENSORS), collate=default_collate))
    assert same(contents(Named()), contents(Many()))


def test_any_map_style_data_and_collate():
    named = contents(Named())
    indices = [[index for batch in step for index in batch["y"].tolist()] for step in named]
    assert [[index for batch in step for index in batch.tolist()] for step in contents(list(range(200)))] == indices
    joined = contents(Named(), collate=lambda samples: [sample["y"] for sample in samples])
    assert [list(itertools.chain(*step)) for step in joined] == indices


@settings(max_examples=20, deadline=None)
@given(microbatch=st.integers(1, 250), start=st.integers(0, 8))
def test_micro_batches_change_nothing_and_a_resumed_run_goes_on(microbatch, start):
    whole = contents(TensorDataset(*TENSORS), 200)
    split = contents(TensorDataset(*TENSORS), microbatch, start=start)
    assert len(split) == 8 - start == len(poisson_batches(TensorDataset(*TENSORS), PLAN, start=start))
    for one, parts in zip(whole[start:], split, strict=True):
        assert all(1 <= len(y) <= microbatch for _, y, _ in parts)
        assert all(len(y) == microbatch for _, y, _ in parts[:-1])
        assert torch.equal(torch.cat([y for _, y, _ in one]), torch.cat([y for _, y, _ in parts]))


def test_empty_batches_are_steps_without_micro_batches():
    mechanism = Mechanism(dataset_size=3, expected_batch_size=0.5, steps=200)
    sizes = [len(list(batch)) for batch in poisson_batches([1, 2, 3], mechanism, 1, key=KEY)]
    assert len(sizes) == 200
    # P(empty) = (5/6)^3 = 0.58; all of 200 or none of them: below 1e-46
    assert 0 < sizes.count(0) < 200


@pytest.mark.parametrize("size", [199, 201, 0])
def test_another_length_than_planned(size):
    with pytest.raises(ValueError, match=rf"holds {size} samples, .* dataset_size=200: .* dataset_size=len\(dataset\)"):
        poisson_batches(list(range(size)), PLAN)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(200))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 200


@pytest.mark.parametrize("dataset", [Stream(), StreamWithLength(), (index for index in range(200))])
def test_streams_are_refused(dataset):
    with pytest.raises(TypeError, match=r"can't be Poisson-sampled: a stream has no index, .* map-style"):
        poisson_batches(dataset, PLAN)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"microbatch": 0}, ValueError, "microbatch=0 must be >= 1"),
        ({"microbatch": 2.0}, TypeError, r"microbatch=2\.0 must be a whole number"),
        ({"microbatch": True}, TypeError, "microbatch=True must be a whole number"),
        ({"start": 9}, ValueError, r"start=9 must be in \[0, 8\], the planned steps; pass engine\.ledger\.steps"),
        ({"start": -1}, ValueError, "start=-1 must be in"),
        ({"start": 1.0}, TypeError, r"start=1\.0 must be a whole number"),
        ({"key": b"short"}, ValueError, "key must be 32 bytes; leave it out unless this is a test"),
        ({"key": "k" * 32}, ValueError, "key must be 32 bytes"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        poisson_batches(list(range(200)), PLAN, **arguments)
    assert "short" not in str(caught.value) and "kkk" not in str(caught.value)


def test_a_batch_is_iterated_once():
    logical_batch = next(iter(poisson_batches(list(range(200)), PLAN)))
    list(logical_batch)
    with pytest.raises(PrivacyViolation, match=r"step 0 is iterated twice: its samples would count twice"):
        list(logical_batch)


def test_nothing_printed_tells_the_size_of_a_batch(caplog, capsys):
    """Under add-or-remove adjacency the size of a batch tells who is in."""
    shown = set()
    with caplog.at_level(logging.DEBUG):
        for key in (KEY, bytes(32)):
            batches = poisson_batches(list(range(200)), PLAN, 1, key=key)
            logical_batch = next(iter(batches))
            list(logical_batch)
            shown.add((repr(batches), repr(logical_batch), str(logical_batch)))
    assert len(shown) == 1
    assert not caplog.records and capsys.readouterr() == ("", "")
    with pytest.raises(TypeError):
        len(logical_batch)  # a progress bar would print it
