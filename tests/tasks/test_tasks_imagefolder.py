"""Folders of image files: with a split and without, odd formats, broken files."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from groupclip.tasks import TaskOptions, load_task
from groupclip.tasks.split import held_out


def save(path, value=0, mode="RGB", size=(5, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def make(root, classes=("cat", "dog"), count=20):
    for place, name in enumerate(classes):
        for n in range(count):
            save(root / name / f"{n}.png", (place * 100, n, 255))


def test_a_folder_without_a_split(tmp_path):
    make(tmp_path)
    task = load_task(f"imagefolder:{tmp_path}", options=TaskOptions(image_size=4))
    assert (task.classes, task.input_shape, task.kind, task.public) == (("cat", "dog"), (3, 4, 4), "image", None)
    assert len(task.train) + len(task.test) == 40 and 0 < len(task.test) < 20
    assert not {*task.train.paths} & {*task.test.paths}
    image, label = task.train[len(task.train) - 1]
    assert (image.shape, image.dtype, label.dtype, int(label)) == ((3, 4, 4), torch.float32, torch.int64, 1)
    assert image[:, 0, 0].tolist() == pytest.approx([(100 - 127.5) / 127.5, image[1, 0, 0].item(), 1.0])


def test_adding_an_image_moves_no_other(tmp_path):
    make(tmp_path)
    before = load_task("imagefolder", data=tmp_path)
    save(tmp_path / "cat" / "0a.png", (1, 2, 3))
    after = load_task("imagefolder", data=tmp_path)
    new = {tmp_path / "cat" / "0a.png"}
    assert {*after.train.paths} - new == {*before.train.paths}
    assert {*after.test.paths} - new == {*before.test.paths}


def test_train_and_test_folders_and_public_data(tmp_path):
    make(tmp_path / "train", count=3)
    make(tmp_path / "test", count=2)
    make(tmp_path / "open", count=1)
    task = load_task("imagefolder", data=tmp_path, options=TaskOptions(public=tmp_path / "open"))
    assert (len(task.train), len(task.test), len(task.public)) == (6, 4, 2)
    assert task.input_shape == (3, 32, 32)


def test_every_usual_mode_and_format_decodes(tmp_path):
    make(tmp_path / "test", count=1)
    for name, mode, value in (
        ("a.png", "L", 200), ("b.png", "RGBA", (1, 2, 3, 4)), ("c.png", "P", 3), ("d.JPEG", "RGB", (9, 9, 9)),
        ("e.png", "1", 1), ("f.gif", "P", 1), ("g.bmp", "RGB", (9, 9, 9)), ("h.webp", "RGB", (9, 9, 9)),
    ):  # fmt: skip
        save(tmp_path / "train" / "cat" / name, value, mode)
    save(tmp_path / "train" / "dog" / "deeper" / "x.png")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    task = load_task("imagefolder", data=tmp_path)
    assert len(task.train) == 9
    for image, _ in (task.train[n] for n in range(9)):
        assert image.shape == (3, 32, 32) and image.abs().max() <= 1


def test_pixels_are_scaled_by_constants(tmp_path):
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pixels).save(tmp_path / split / name / "x.png")
    image, _ = load_task("imagefolder", data=tmp_path, options=TaskOptions(image_size=4)).train[0]
    assert torch.equal((image * 127.5 + 127.5).round().byte().permute(1, 2, 0), torch.from_numpy(pixels))


def test_given_classes_fix_the_order_and_the_set(tmp_path):
    make(tmp_path, ("cat", "dog"))
    task = load_task("imagefolder", data=tmp_path, options=TaskOptions(classes=("dog", "cat")))
    assert task.classes == ("dog", "cat") and task.train.paths[0].parent.name == "dog"
    assert task.description["label_set"] == "given"
    with pytest.raises(ValueError, match="has no folder 'cow', which is one of the classes"):
        load_task("imagefolder", data=tmp_path, options=TaskOptions(classes=("dog", "cow")))


def test_the_description_names_no_file(tmp_path):
    make(tmp_path / "secret-patient")
    task = load_task("imagefolder", data=tmp_path / "secret-patient")
    assert "secret" not in str(task.description) and ".png" not in str(task.description)


def failing(tmp_path, message, **options):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_task("imagefolder", data=tmp_path, options=TaskOptions(**options))


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone is no folder\. It should hold one sub-folder of images"):
        load_task("imagefolder", data=tmp_path / "gone")


def test_folders_that_are_no_task(tmp_path):
    failing(tmp_path, "has 0 class folder(s) []; two are the least")
    make(tmp_path / "one", ("cat",))
    failing(tmp_path / "one", "has 1 class folder(s) ['cat']; two are the least")
    kept = next(f"{n}.png" for n in range(99) if not held_out(f"cat/{n}.png") and not held_out(f"dog/{n}.png"))
    for name in ("cat", "dog"):
        save(tmp_path / "few" / name / kept)
    failing(tmp_path / "few", "has 2 image(s), too few to hold out one in five")
    make(tmp_path / "hole")
    (tmp_path / "hole" / "eel").mkdir()
    failing(tmp_path / "hole", "eel holds no image file (.png, .jpg")
    make(tmp_path / "half" / "train")
    failing(tmp_path / "half", "has only one of the folders 'train' and 'test'; give both, or neither")
    make(tmp_path / "odd" / "train")
    make(tmp_path / "odd" / "test", ("cat", "dog", "eel"))
    failing(tmp_path / "odd", "has the folder 'eel', which is none of the classes ['cat', 'dog']")
    failing(tmp_path / "few", "image_size=0 must be at least 1 pixel", image_size=0)


def test_a_file_that_is_no_image_is_found_at_once(tmp_path):
    make(tmp_path)
    (tmp_path / "dog" / "broken.png").write_bytes(b"not a png at all")
    failing(tmp_path, "broken.png can't be read as an image")


def test_a_picture_that_is_cut_off_is_named_when_decoded(tmp_path):
    make(tmp_path / "train", count=1)
    make(tmp_path / "test", count=1)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = tmp_path / "train" / "cat" / "0.jpg"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:800])  # a JPEG keeps no checksum, so only decoding finds this
    task = load_task("imagefolder", data=tmp_path)
    with pytest.raises(ValueError, match=r"0\.jpg can't be decoded as an image: .* Repair it or take it out"):
        task.train[task.train.paths.index(file)]
