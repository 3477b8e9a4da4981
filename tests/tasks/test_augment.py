"""Views are shifted and mirrored images, and every shift comes up."""

import pytest
import torch

import groupclip as gc


def pictures() -> torch.Tensor:
    """``[3, 2, 6, 5]``: every pixel is told from every other, also from those of its reflection."""
    return torch.arange(3 * 2 * 6 * 5, dtype=torch.float32).view(3, 2, 6, 5)


def shifted(image: torch.Tensor, crop: int) -> list[torch.Tensor]:
    """Every view there is, made one by one."""
    padded = torch.nn.functional.pad(image.unsqueeze(0), (crop,) * 4, mode="reflect")[0]
    crops = [padded[:, i : i + 6, j : j + 5] for i in range(2 * crop + 1) for j in range(2 * crop + 1)]
    return [*crops, *(each.flip(2) for each in crops)]


def test_each_view_is_one_of_its_image_and_all_come_up():
    torch.manual_seed(0)
    images = pictures()
    found = gc.augmented(images, 400, crop=1, flip=True)
    assert found.shape == (3, 400, 2, 6, 5)
    for image, views in zip(images, found, strict=True):
        there = shifted(image, 1)  # 18
        seen = {next(n for n, each in enumerate(there) if torch.equal(each, view)) for view in views}
        assert seen == set(range(18))  # missed by chance: 18 (17/18)^400 = 2e-9


def test_without_a_flip_nothing_is_mirrored():
    torch.manual_seed(0)
    found = gc.augmented(pictures(), 50, crop=1, flip=False)
    for image, views in zip(pictures(), found, strict=True):
        assert all(any(torch.equal(view, each) for each in shifted(image, 1)[:9]) for view in views)


def test_nothing_asked_for_is_the_image_itself():
    assert torch.equal(gc.augmented(pictures(), 2, crop=0, flip=False), pictures().unsqueeze(1).expand(-1, 2, -1, -1, -1))
    assert gc.augmented(pictures()[:0], 2, crop=1).shape == (0, 2, 2, 6, 5)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"images has shape \(4, 6, 6\)"):
        gc.augmented(torch.zeros(4, 6, 6))
    with pytest.raises(ValueError, match="crops of 6 pixels"):
        gc.augmented(torch.zeros(4, 1, 6, 6), crop=6)
    with pytest.raises(ValueError, match="views=0 must be >= 1"):
        gc.augmented(torch.zeros(4, 1, 6, 6), 0, crop=1)
