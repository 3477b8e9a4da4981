"""The scaled experiment on images: it reads what it says it reads, and its cells run on made data."""

import dataclasses

import numpy as np
import pytest
import torch

import groupclip as gc
from groupclip.models.vit import ViTShape
from groupclip.paper.scaled import vision
from groupclip.paper.scaled.vision_data import Images, MissingImages, distorted, read, scaled
from groupclip.paper.scaled.vision_made import coded, write_made
from groupclip.paper.scaled.vision_pretraining import Recipe, accuracy, pretrained, small_vit
from groupclip.paper.trainer import train_cell


@pytest.fixture(autouse=True)
def _fresh():
    yield
    read.cache_clear()
    vision._public_model.cache_clear()


def test_coded_colours_are_read_as_they_were(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 64, (7, 3, 32, 32)).astype(np.uint8)
    labels = np.arange(7, dtype=np.uint8)
    np.savez_compressed(
        tmp_path / "a.npz", train_d=coded(pixels), train_y=labels, test_d=coded(pixels[:2]), test_y=labels[:2],
        classes=np.array(list("abcdefg")),
    )  # fmt: skip
    train, test = read(tmp_path / "a.npz")
    assert torch.equal(train.pixels, torch.from_numpy(pixels * 4 + 2)) and torch.equal(test.pixels, train.pixels[:2])
    assert train.labels.tolist() == list(range(7)) and train.classes == 7 and len(test) == 2


def test_grey_images_lie_in_the_middle(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    np.savez_compressed(
        tmp_path / "g.npz", train_x=grey, train_y=np.arange(3), test_x=grey[:1], test_y=np.arange(1), classes=np.array(["x"] * 3)
    )  # fmt: skip
    train, _ = read(tmp_path / "g.npz")
    assert train.pixels.shape == (3, 3, 32, 32)
    assert torch.equal(train.pixels[:, 1, 2:30, 2:30], torch.from_numpy(grey))
    assert int(train.pixels.sum()) == 3 * int(grey.sum())


def test_other_files_are_refused(tmp_path):
    with pytest.raises(MissingImages, match=r"no .*nothing\.npz"):
        read(tmp_path / "nothing.npz")
    np.savez(tmp_path / "other.npz", words=np.arange(3))
    with pytest.raises(MissingImages, match="holds words"):
        read(tmp_path / "other.npz")


def test_a_batch_is_its_records_in_order():
    images = Images(torch.arange(5).repeat_interleave(3 * 32 * 32).view(5, 3, 32, 32).byte(), torch.arange(5), 5)
    x, y = images.batch([images[4], images[1]])
    assert y.tolist() == [4, 1] and x.shape == (2, 3, 32, 32)
    assert x[0, 0, 0, 0].item() == pytest.approx((4 - 127.5) / 127.5)
    with pytest.raises(IndexError):
        images[5]


def test_distortions_are_mirrors_and_shifts_of_each_image_alone():
    images = scaled(torch.randint(0, 256, (64, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte())
    out = distorted(images, torch.Generator().manual_seed(1), most=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    mirrored = 0
    for before, after in zip(padded, out, strict=True):
        ways = {
            (down, right, mirror): torch.equal(after, window.flip(-1) if mirror else window)
            for down in range(5) for right in range(5) for mirror in (False, True)
            for window in [before[:, down : down + 32, right : right + 32]]
        }  # fmt: skip
        assert sum(ways.values()) == 1
        mirrored += any(same for (_, _, mirror), same in ways.items() if mirror)
    assert 10 < mirrored < 54


def test_pretrained_weights_are_made_once(tmp_path):
    write_made(tmp_path / "p.npz", classes=4, train=120, test=60, seed=0)
    train, test = read(tmp_path / "p.npz")
    shape, recipe = ViTShape(dim=16, depth=2, heads=2), Recipe(epochs=12, batch=40)
    model = pretrained(shape, train, recipe, tmp_path / "kept" / "w.safetensors")
    assert accuracy(model, test)["accuracy"] > 60  # of four classes; it starts at 25
    with torch.no_grad():
        model.head.bias.add_(1.0)
    again = pretrained(shape, train, recipe, tmp_path / "kept" / "w.safetensors")
    torch.testing.assert_close(again.head.bias + 1.0, model.head.bias)


def test_smoke_cells_run(tmp_path):
    made = vision.smoke_cells(tmp_path)
    assert len(made) == 3
    results = [train_cell(c.build(), experiment="t", cell=c.cell, settings=c.settings) for c in made]
    plain, *private = results
    assert plain.privacy == {} and all(r.privacy["epsilon"] <= 8 for r in private)
    assert [r.groups for r in results] == [0, 1, len(list(small_vit(vision.SMOKE.sizes["vit-16"], 4).parameters()))]
    assert all(0 <= r.metrics["accuracy"] <= 100 for r in results)
    peaks = [r.peak_bytes for r in results]
    assert peaks[0] <= peaks[2] < peaks[1]  # without privacy, one group a parameter, one group


def test_all_cells_of_one_seed_begin_alike(tmp_path):
    """Also after one of them was trained; and another seed has another head on the same body."""
    a, _, b = vision.smoke_cells(tmp_path)
    first = a.build()
    before = {n: p.clone() for n, p in first.model.named_parameters()}
    train_cell(first, experiment="t", cell=a.cell, settings=a.settings)
    assert not torch.equal(before["head.weight"], first.model.head.weight)
    for name, p in b.build().model.named_parameters():
        assert torch.equal(p, before[name])
    settings = dataclasses.replace(b.settings, seed=5)
    folders = vision.Folders(tmp_path, tmp_path / "public")
    shape = vision.SMOKE.sizes["vit-16"]
    other = vision.build(shape, vision.SMOKE.recipe, settings, folders, private=vision.PRIVATE)
    changed = {n for n, p in other.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {"head.weight"}


def test_the_full_list_says_every_run_once(tmp_path):
    made = vision.real_cells(tmp_path, tmp_path)
    names = {tuple(sorted((k, str(v)) for k, v in c.cell.items())) for c in made}
    assert len(names) == len(made) == 3 * (3 + 3 * (8 + 4) + 3)
    assert all(c.settings.lr == made[0].settings.lr for c in made)  # of all styles and sizes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", vision.SIZES)
def test_the_planned_groups_are_those_of_the_planner(size):
    shape = vision.SIZES[size]
    model = small_vit(shape, 10)
    batch = (torch.zeros(250, 3, 32, 32), torch.zeros(250, dtype=torch.long))
    optimizer = torch.optim.AdamW(model.parameters())
    found = gc.plan(model, batch, groups=3, optimizer=optimizer, loss=vision.losses)
    groups = tuple(vision.PLANNED.items())
    ours = vision.predicted_peak(shape, 10, 250, groups)
    assert len(gc.partition(model, dict(groups))) == 3
    assert ours == pytest.approx(found.predicted_peak, rel=1e-3)
    # the same memory as 40 groups of one layer; and as pairs of equal memory at few and many groups
    peak = {
        s: vision.predicted_peak(shape, 10, 250, s) for s in ("layer-wise", "block-wise", "boundaries:5", "uniform:2")
    }
    assert ours == pytest.approx(peak["layer-wise"], rel=1e-3)
    assert peak["boundaries:5"] == peak["block-wise"] < peak["uniform:2"]
