"""Folders of image files: with a split and without, odd formats, broken files."""

import os
import pickle
import re
from hashlib import blake2b

import numpy as np
import pytest
import torch
from PIL import Image

from groupclip.tasks import TaskOptions, imagefolder, load_task
from groupclip.tasks.split import held_out
from groupclip.tasks.telling import UnreadableImages


def save(path, value=0, mode="RGB", size=(5, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def make(root, classes=("cat", "dog"), count=20, blue=255):
    for place, name in enumerate(classes):
        for n in range(count):
            save(root / name / f"{n}.png", (place * 100, n, blue))


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
    make(tmp_path / "test", count=2, blue=1)
    make(tmp_path / "open", count=1, blue=2)
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
            other = np.full_like(pixels, len(split) + ord(name))
            Image.fromarray(pixels if (split, name) == ("train", "a") else other).save(tmp_path / split / name / "x.png")
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
        save(tmp_path / "few" / name / kept, (ord(name[0]), 0, 0))
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


@pytest.mark.parametrize(("name", "shown"), [(b"c\xff", r"'c\\udcff'"), (b"two\nlines", r"'two\\nlines'")])
def test_a_class_whose_name_can_not_be_shown_is_refused(tmp_path, name, shown):
    """It would end as an error of the page or file that holds it, when all is spent."""
    make(tmp_path)
    (tmp_path / "cat").rename(tmp_path / os.fsdecode(name))
    with pytest.raises(ValueError, match=rf"has a folder whose name can't be shown, {shown}: rename it"):
        load_task("imagefolder", data=tmp_path)


def torn(path):
    """A JPEG keeps no checksum, so only decoding finds that it is cut off."""
    noise = np.random.default_rng(len(path.name)).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:800])


def test_every_file_that_is_no_image_is_found_at_once(tmp_path):
    """In both parts, in the order of the files, whatever is wrong with each."""
    make(tmp_path / "train", count=3)
    make(tmp_path / "test", count=1, blue=1)
    cat = tmp_path / "train" / "cat"
    (tmp_path / "train" / "dog" / "broken.png").write_bytes(b"not a png at all")
    torn(cat / "cut off.jpg")
    (cat / "empty.gif").touch()
    (cat / "gone.png").symlink_to(tmp_path / "nowhere")
    (cat / "itself.png").symlink_to(cat / "itself.png")
    os.mkfifo(cat / "pipe.png")
    save(tmp_path / "test" / "cat" / "lab.tif", (1, 2, 3), "LAB")
    expected = {
        "cut off.jpg": "image file is truncated", "empty.gif": "it is empty (0 bytes)", "gone.png": "it is a link to nothing",
        "itself.png": "Too many levels of symbolic links", "pipe.png": "it is no regular file", 
        "broken.png": "it begins as no image file does that can be read",
        "lab.tif": "its mode is 'LAB' (TIFF), whose values have no fixed range",
    }  # fmt: skip
    for workers in (0, 3):
        with pytest.raises(UnreadableImages, match=r"^7 files can't be read as an image:") as caught:
            load_task("imagefolder", data=tmp_path, workers=workers)
        lines = str(caught.value).splitlines()
        assert [line.split(": ")[0].rpartition("/")[2] for line in lines[1:-1]] == list(expected)
        assert all(reason in line for line, reason in zip(lines[1:-1], expected.values(), strict=True))
        assert lines[-1] == "Repair them or take them out. No run has begun, and nothing is spent"
    with pytest.raises(ValueError, match="can't be read as an image"):
        raise pickle.loads(pickle.dumps(caught.value))  # as a worker's is


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    make(tmp_path)
    save(tmp_path / "cat" / "bomb.png", size=(60, 60))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    failing(tmp_path, "bomb.png: Image size (3600 pixels) exceeds limit of 2000 pixels")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    load_task("imagefolder", data=tmp_path)  # large, and no bomb


def test_all_is_decoded_once_and_told(tmp_path, monkeypatch):
    make(tmp_path)
    told = []
    task = load_task("imagefolder", data=tmp_path, told=lambda done, of: told.append((done, of)), workers=2)
    assert told == [(n, 40) for n in range(1, 41)]
    held = [task.train[n] for n in range(len(task.train))]
    monkeypatch.setattr(imagefolder, "HELD_BYTES", 40 * 3 * 32 * 32 - 1)
    again = load_task("imagefolder", data=tmp_path)
    assert task.train.held is not None and again.train.held is None and again.test.held is None
    for (one, label), (two, same_label) in zip(held, again.train, strict=False):
        assert torch.equal(one, two) and torch.equal(label, same_label)
    for path in tmp_path.rglob("*.png"):
        path.unlink()
    task.train[0]  # from memory
    with pytest.raises(UnreadableImages, match=r"it is gone\n.*put it back as it was.* can't go on without one"):
        again.train[0]


def test_a_worker_is_sent_no_decoded_images(tmp_path):
    make(tmp_path)
    task = load_task("imagefolder", data=tmp_path)
    sent = pickle.loads(pickle.dumps(task.train))
    assert task.train.held is not None and sent.held is None
    assert torch.equal(sent[3][0], task.train[3][0])


def test_what_is_held_out_is_kept_first(tmp_path, monkeypatch):
    make(tmp_path / "train", count=3)
    make(tmp_path / "test", count=1, blue=1)
    monkeypatch.setattr(imagefolder, "HELD_BYTES", 2 * 3 * 32 * 32)
    task = load_task("imagefolder", data=tmp_path)
    assert task.train.held is None and task.test.held is not None


def test_a_file_that_changes_after_it_was_loaded_is_refused(tmp_path, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(imagefolder, "HELD_BYTES", 0)
    task = load_task("imagefolder", data=tmp_path)
    first = task.train.paths[0]
    before = first.read_bytes()
    save(first, (9, 9, 9))
    with pytest.raises(UnreadableImages, match=r"it has changed\n.*put it back as it was"):
        task.train[0]
    first.write_bytes(before)
    task.train[0]


def one(tmp_path, name, image, size=2, **how):
    """What a task makes of one file, in 0..255: ``[3, size, size]``, and the task's remarks."""
    make(tmp_path / "train", count=1)
    make(tmp_path / "test", count=1, blue=1)
    file = tmp_path / "train" / "cat" / name
    image.save(file, **how)
    task = load_task("imagefolder", data=tmp_path, options=TaskOptions(image_size=size))
    pixels, _ = task.train[task.train.paths.index(file)]
    return pixels * 127.5 + 127.5, task.remarks


def deep(values, dtype=np.uint16):
    return Image.fromarray(np.array(values, dtype=dtype))


GREY = [[0, 257], [25700, 65535]]  # 257 is one step of 8 bits


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.TIFF", "x.pgm"])
def test_sixteen_bits_are_scaled_by_their_range(tmp_path, name):
    image = deep(GREY).convert("I") if name == "x.pgm" else deep(GREY)
    pixels, _ = one(tmp_path, name, image)
    assert torch.allclose(pixels, torch.tensor([[0.0, 1.0], [100.0, 255.0]]).expand(3, 2, 2), atol=1e-4)


def test_twelve_bits_of_sixteen_keep_their_steps(tmp_path):
    """A scanner's values end far below the range; 8 bits would leave 16 of them."""
    pixels, _ = one(tmp_path, "x.png", deep([[0, 1], [2, 4095]]))
    assert torch.allclose(pixels[0], torch.tensor([[0, 1], [2, 4095]]) / 257, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "mode"),
    [(np.full((2, 2), 0.5, np.float32), "F"), (np.full((2, 2), 70000, np.int32), "I")],
    ids=["float", "32 bits"],
)
def test_a_mode_without_a_range_is_refused_by_name(tmp_path, values, mode):
    message = rf"x\.tif: its mode is '{mode}' \(TIFF\), whose values have no fixed range .*16-bit grey PNG"
    with pytest.raises(UnreadableImages, match=message):
        one(tmp_path, "x.tif", Image.fromarray(values))


def test_grey_that_counts_from_white_is_refused(tmp_path):
    with pytest.raises(UnreadableImages, match="its mode is 'I;16'"):
        one(tmp_path, "x.tif", deep(GREY), tiffinfo={262: 0})


HALF = (200, 100, 0, 128)


@pytest.mark.parametrize(
    ("mode", "value", "seen"),
    [
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", HALF, (227, 177, 127)),
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (40, 255), (40, 40, 40)),
    ],
)
def test_transparent_parts_are_on_white(tmp_path, mode, value, seen):
    """Without it a drawing whose shape is in its alpha alone is black all over."""
    pixels, _ = one(tmp_path, "x.png", Image.new(mode, (4, 4), value))
    assert (pixels[:, 0, 0] - torch.tensor(seen)).abs().max() <= 1


@pytest.mark.parametrize("how", [0, b"\x00\xff"], ids=["one colour", "bytes"])
def test_a_palette_with_transparency_is_on_white(tmp_path, how):
    image = Image.fromarray(np.array([[0, 0], [1, 1]], dtype=np.uint8)).convert("P")
    image.putpalette([5, 6, 7, 50, 60, 70])
    pixels, _ = one(tmp_path, "x.png", image, transparency=how)
    assert pixels[:, 0, 0].tolist() == [255, 255, 255]
    assert torch.allclose(pixels[:, 1, 0], torch.tensor([50.0, 60.0, 70.0]), atol=1e-3)


def test_cmyk_is_read_as_its_colour(tmp_path):
    pixels, _ = one(tmp_path, "x.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95)
    assert (pixels[:, 0, 0] - torch.tensor([255.0, 0.0, 0.0])).abs().max() < 8


CORNER = {1: (0, 0), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}


@pytest.mark.parametrize("orientation", CORNER)
@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_images_are_upright(tmp_path, orientation, name):
    """Where the first stored pixel is shown, by the standard's own words; black on white."""
    stored = np.full((2, 2), 255, np.uint8)
    stored[0, 0] = 0
    exif = Image.Exif()
    exif[274] = orientation
    pixels, _ = one(tmp_path, name, Image.fromarray(stored), exif=exif)
    assert (pixels[0] == 0).nonzero().tolist() == [list(CORNER[orientation])]


def test_a_damaged_exif_block_tells_nothing(tmp_path):
    pixels, _ = one(tmp_path, "x.jpg", Image.new("RGB", (8, 8), (10, 10, 10)), exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert (pixels - 10).abs().max() < 3


@pytest.mark.parametrize("name", ["x.gif", "x.tif"])
def test_the_first_of_several_pictures_counts_and_is_told(tmp_path, name):
    frames = [Image.new("L", (4, 4), value) for value in (40, 90, 250)]
    pixels, remarks = one(tmp_path, name, frames[0], save_all=True, append_images=frames[1:])
    assert (pixels - 40).abs().max() < 1e-3
    assert remarks == ("1 file(s) hold several pictures (frames, pages): the first of each is used",)


def test_hidden_and_system_folders_are_left_out_at_every_depth_and_told(tmp_path):
    make(tmp_path)
    before = load_task("imagefolder", data=tmp_path)
    assert before.remarks == ()
    places = [
        ".ipynb_checkpoints", "cat/.ipynb_checkpoints", "cat/deep/.thumbnails/large", "__MACOSX/cat", "dog/__MACOSX",
        "dog/@eaDir/0.png",
    ]  # fmt: skip
    for place, folder in enumerate(places):
        save(tmp_path / folder / "copy.png", (place, place, 7))
    save(tmp_path / "cat" / "._0.png", (1, 1, 8))
    save(tmp_path / "cat" / ".hidden.PNG", (1, 1, 9))
    save(tmp_path / "stray.png", (1, 1, 10))
    for name in ("cat/notes.txt", "cat/a.heic", "dog/b.heic", "dog/README", ".DS_Store"):
        (tmp_path / name).touch()
    after = load_task("imagefolder", data=tmp_path)
    assert (after.train.paths, after.test.paths) == (before.train.paths, before.test.paths)
    assert after.remarks == (
        "1 image file(s) left out: it is in a folder that a system made (@eaDir)",
        "2 image file(s) left out: it is in a folder that a system made (__MACOSX)",
        "1 image file(s) left out: it lies beside the folders that are read, in none of them",
        "5 image file(s) left out: its name, or that of a folder it is in, begins with a dot",
        "4 file(s) left out: no image by the end of the name (.heic 2, .txt 1, no ending 1)",
    )
    assert after.description == before.description


def test_a_third_part_is_told(tmp_path):
    make(tmp_path / "train", count=3)
    make(tmp_path / "test", count=1, blue=1)
    make(tmp_path / "val", count=2, blue=2)
    remarks = load_task("imagefolder", data=tmp_path).remarks
    assert remarks == ("4 image file(s) left out: it lies beside the folders that are read, in none of them",)


def test_a_copy_counts_once_whatever_its_name(tmp_path):
    make(tmp_path)
    before = load_task("imagefolder", data=tmp_path)
    for name in ("zz copy of 1.png", "deep/zz.png"):
        target = tmp_path / "cat" / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((tmp_path / "cat" / "1.png").read_bytes())
    (tmp_path / "cat" / "zz link.png").symlink_to(tmp_path / "cat" / "2.png")
    (tmp_path / "cat" / "zz hard link.png").hardlink_to(tmp_path / "cat" / "3.png")
    after = load_task("imagefolder", data=tmp_path)
    assert {*after.train.digests} == {*before.train.digests} and len(after.train) == len(before.train)
    assert len(after.test) == len(before.test)
    assert after.remarks == (f"4 image file(s) left out: {imagefolder.COPY}",)


def test_one_more_file_changes_one_record_at_most(tmp_path):
    """Whatever is in it: neighbouring folders must make neighbouring data sets."""
    make(tmp_path)

    def records():
        task = load_task("imagefolder", data=tmp_path)
        parts = ((0, task.train), (1, task.test))
        return {(part, label, digest) for part, files in parts for label, digest in zip(files.labels, files.digests, strict=True)}

    before = records()
    content = (tmp_path / "cat" / "5.png").read_bytes()
    for name in ("cat/0 first.png", "cat/zz.png", "dog/copy.png", "dog/copy/again.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        after = records()
        assert len([entry for entry in before ^ after if entry[0] == 0]) <= 1
        before = after
    assert not any(label == 1 and digest == blake2b(content, digest_size=16).digest() for _, label, digest in after)


@pytest.mark.parametrize("part", ["test", "public"])
def test_a_training_image_is_neither_held_out_nor_public(tmp_path, part):
    make(tmp_path / "train", count=3)
    make(tmp_path / "test", count=2, blue=1)
    make(tmp_path / "public", count=2, blue=2)
    copy = tmp_path / part / "cat" / "shown.png"
    copy.write_bytes((tmp_path / "train" / "cat" / "1.png").read_bytes())
    failing(tmp_path, "shown.png is ", public=tmp_path / "public")
    failing(tmp_path, "1 image(s) of ", public=tmp_path / "public")
    copy.unlink()
    load_task("imagefolder", data=tmp_path, options=TaskOptions(public=tmp_path / "public"))


def test_links_to_folders_are_followed_and_loops_end(tmp_path):
    make(tmp_path / "elsewhere", ("dog",))
    make(tmp_path / "data", ("cat",), blue=9)
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere" / "dog")
    (tmp_path / "data" / "cat" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "cat" / "me").symlink_to(tmp_path / "data" / "cat")
    (tmp_path / "elsewhere" / "dog" / "deeper").mkdir()
    save(tmp_path / "elsewhere" / "dog" / "deeper" / "x.png", (77, 1, 1))
    remarks = load_task("imagefolder", data=tmp_path / "data").remarks
    assert remarks == ("40 image file(s) left out: it is reached through a link to a folder that it is in",)
    (tmp_path / "data" / "cat" / "up").unlink()
    task = load_task("imagefolder", data=tmp_path / "data")
    assert len(task.train) + len(task.test) == 41
    assert task.remarks == ("20 image file(s) left out: it is reached through a link to a folder that it is in",)


COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"


def test_a_class_is_one_whatever_its_unicode_form(tmp_path):
    make(tmp_path / "train", (DECOMPOSED, "cat"), count=2)
    make(tmp_path / "test", (COMPOSED, "cat"), count=1, blue=1)
    for options in (TaskOptions(), TaskOptions(classes=("cat", DECOMPOSED))):
        task = load_task("imagefolder", data=tmp_path, options=options)
        assert {*task.classes} == {COMPOSED, "cat"} and len(task.train) == 4
    make(tmp_path / "train", (COMPOSED,), count=1, blue=3)
    failing(tmp_path, r"differ in Unicode form or white space alone, 'Jose\u0301' and 'Jos\xe9': are they one class?")


def test_a_name_in_two_unicode_forms_is_on_one_side(tmp_path):
    make(tmp_path)
    for n in range(12):
        save(tmp_path / "cat" / f"{COMPOSED}{n}.png", (1, n, 1))
        save(tmp_path / "dog" / f"{DECOMPOSED}{n}.png", (2, n, 2))
    task = load_task("imagefolder", data=tmp_path)
    kept = {path.name for path in task.train.paths}
    for n in range(12):
        assert (f"{COMPOSED}{n}.png" in kept) == (not held_out(f"cat/{COMPOSED}{n}.png"))
        assert (f"{DECOMPOSED}{n}.png" in kept) == (not held_out(f"dog/{COMPOSED}{n}.png"))
