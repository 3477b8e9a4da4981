"""The digits that ship with scikit-learn."""

import json

import torch
from sklearn import datasets

from groupclip.tasks import load_task


def test_sizes_and_facts():
    task = load_task("digits")
    assert (len(task.train), len(task.test), task.num_classes) == (1437, 360, 10)
    assert (task.name, task.kind, task.input_shape, task.vocabulary) == ("digits", "image", (1, 8, 8), None)
    assert task.public is task.test
    assert task.description["train_size"] == 1437
    assert json.loads(json.dumps(task.description)) == task.description


def test_scaling_is_fixed_and_exact():
    task = load_task("digits")
    pixels, digits = datasets.load_digits(return_X_y=True)
    everything = torch.cat([task.train.tensors[0], task.test.tensors[0]]).flatten(1)
    labels = torch.cat([task.train.tensors[1], task.test.tensors[1]])
    back = everything * 8 + 8  # from [-1, 1] to 0..16
    ours = sorted((*row, label) for row, label in zip(back.int().tolist(), labels.tolist(), strict=True))
    assert ours == sorted((*map(int, row), int(label)) for row, label in zip(pixels, digits, strict=True))
    assert (everything.min(), everything.max()) == (-1, 1)


def test_the_split_is_stratified_and_always_the_same():
    first, second = load_task("digits"), load_task("digits")
    shares = torch.bincount(first.test.tensors[1]) / torch.bincount(
        torch.cat([first.train.tensors[1], first.test.tensors[1]])
    )
    assert shares.sub(0.2).abs().max() < 0.01
    assert torch.equal(first.test.tensors[0], second.test.tensors[0])
    # pins the split itself: a change would make published figures incomparable
    assert first.test.tensors[0].sum(dtype=torch.float64).item() == -9077.875
