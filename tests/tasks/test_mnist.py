"""mnist and fashion-mnist from IDX folders and .npz files, sound and damaged."""

import gzip
import re
import struct

import numpy as np
import pytest
import torch

from groupclip.tasks import TaskOptions, load_task
from groupclip.tasks.idx import read_idx
from groupclip.tasks.scattering import scattered

STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def arrays(train=7, test=3, side=6):
    rng = np.random.default_rng(0)
    image = lambda n: rng.integers(0, 256, (n, side, side), dtype=np.uint8)  # noqa: E731
    label = lambda n: rng.integers(0, 10, n, dtype=np.uint8)  # noqa: E731
    return image(train), label(train), image(test), label(test)


def idx_bytes(array, kind=8):
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_folder(folder, values, zipped=False):
    for stem, array in zip(STEMS, values, strict=True):
        raw = idx_bytes(array)
        (folder / (stem + ".gz" * zipped)).write_bytes(gzip.compress(raw) if zipped else raw)


def test_features_in_place_of_pixels(tmp_path):
    write_folder(tmp_path, arrays(side=28))
    pixels = load_task("fashion-mnist", data=tmp_path)
    task = load_task("fashion-mnist", data=tmp_path, options=TaskOptions(features="scattering"))
    assert task.input_shape == (81, 7, 7)
    assert torch.equal(task.train.tensors[0], scattered(pixels.train.tensors[0]))
    assert torch.equal(task.test.tensors[0][1:2], scattered(pixels.test.tensors[0][1:2]))
    assert "scattering of two scales" in task.description["preprocessing"]
    with pytest.raises(ValueError, match="features='wavelets' are unknown; use scattering"):
        load_task("mnist", data=tmp_path, options=TaskOptions(features="wavelets"))
    with pytest.raises(ValueError, match="features=scattering means nothing to task 'digits'"):
        load_task("digits", options=TaskOptions(features="scattering"))


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_of_idx_files(tmp_path, zipped):
    values = arrays()
    write_folder(tmp_path, values, zipped)
    task = load_task("fashion-mnist", data=tmp_path)
    assert (len(task.train), len(task.test), task.input_shape) == (7, 3, (1, 6, 6))
    assert task.classes[:2] == ("t-shirt", "trouser")
    images, labels = task.train.tensors
    assert torch.equal((images[:, 0] * 127.5 + 127.5).round().byte(), torch.from_numpy(values[0]))
    assert labels.tolist() == values[1].tolist()
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    assert task.public is task.test
    assert str(tmp_path) not in str(task.description)


@pytest.mark.parametrize("keys", ["x_train y_train x_test y_test", "train_x train_y test_x test_y"])
def test_an_npz_file_with_either_names(tmp_path, keys):
    values = arrays()
    np.savez(tmp_path / "m.npz", classes=np.array(["zero"]), **dict(zip(keys.split(), values, strict=True)))
    task = load_task(f"mnist:{tmp_path / 'm.npz'}")
    assert (len(task.train), task.classes) == (7, tuple("0123456789"))
    assert task.test.tensors[1].tolist() == values[3].tolist()


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_task("mnist", data=tmp_path / "gone")
    message = str(caught.value)
    for part in ("there is nothing at", "gone", "fetches nothing by itself", "train-images-idx3-ubyte[.gz]", ".npz"):
        assert part in message


def test_one_file_missing(tmp_path):
    write_folder(tmp_path, arrays())
    (tmp_path / STEMS[3]).unlink()
    with pytest.raises(FileNotFoundError, match=r"has no t10k-labels-idx1-ubyte\[\.gz\]\. groupclip fetches nothing"):
        load_task("mnist", data=tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda raw: b"", "is no IDX file: it starts with nothing"),
        (lambda raw: b"\x89PNG" + raw, "is no IDX file: it starts with 89504e47, not with 0000"),
        (lambda raw: raw[:2] + b"\x0d" + raw[3:], "holds IDX type 0x0d; images and labels are unsigned bytes"),
        (lambda raw: raw[:3] + b"\x01" + raw[4:], "has 1 dimensions, not 3; are two files swapped?"),
        (lambda raw: raw[:9], "is cut off inside its header"),
        (lambda raw: raw[:-1], "announces 7x6x6 values but holds 251; it is cut off or damaged"),
        (lambda raw: raw + b"x", "announces 7x6x6 values but holds 253"),
        (lambda raw: gzip.compress(raw)[:-9], "the gzip data is damaged or cut off"),
        (lambda raw: gzip.compress(raw)[:30] + b"\0\0\0\0" + gzip.compress(raw)[34:], "the gzip data is damaged"),
    ],
)
def test_damaged_idx_files(tmp_path, spoil, message):
    file = tmp_path / "images"
    file.write_bytes(spoil(idx_bytes(arrays()[0])))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_idx(file, dimensions=3)


def npz(tmp_path, **changes):
    values = dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays(), strict=True))
    np.savez(tmp_path / "m.npz", **{key: value for key, value in {**values, **changes}.items() if value is not None})
    return tmp_path / "m.npz"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(y_test=None), "holds the arrays [x_train, y_train, x_test]; needed are x_train, y_train, x_test, y_test"),
        (dict(x_train=np.zeros((7, 6, 6))), "training images are float64 (7, 6, 6); needed is uint8"),
        (dict(x_test=np.zeros((3, 36), np.uint8)), "test images are uint8 (3, 36); needed is uint8 (N, height, width)"),
        (dict(y_train=np.zeros(6, int)), "training labels are int64 (6,); needed is one integer for each of 7 images"),
        (dict(y_train=np.zeros(7)), "training labels are float64 (7,)"),
        (dict(y_train=np.full(7, 10)), "training labels run from 10 to 10; needed are classes 0 to 9"),
        (dict(y_test=np.full(3, -1)), "test labels run from -1 to -1"),
        (dict(x_test=np.zeros((3, 5, 6), np.uint8)), "training images have (6, 6) pixels, test images (5, 6)"),
        (dict(x_test=np.zeros((0, 6, 6), np.uint8), y_test=np.zeros(0, int)), "there are no test images"),
        (dict(y_train=np.array([None] * 7)), "can't be read as an .npz file of plain arrays: Object arrays"),
    ],
)
def test_npz_files_that_hold_something_else(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_task("mnist", data=npz(tmp_path, **changes))


def test_files_that_are_no_npz(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "bare.npy", np.zeros(3))
    whole = npz(tmp_path).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("text.npz", "bare.npy", "cut.npz"):
        with pytest.raises(ValueError, match=r"can't be read as an \.npz file of plain arrays"):
            load_task("mnist", data=tmp_path / name)


def test_a_pickle_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "m.npz", x_train=np.array([Trap()], dtype=object), y_train=0, x_test=0, y_test=0)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_task("mnist", data=tmp_path / "m.npz")
    assert not (tmp_path / "sprung").exists()
