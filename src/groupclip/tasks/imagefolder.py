"""``imagefolder:PATH``: one sub-folder of image files for each class, with or without a train/test split.

Errors name the file they are about: that is for the person at the terminal, who owns the data. Nothing here
goes into a task's description, so no file name reaches a release.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .spec import ImageFiles, Task, TaskOptions
from .split import SPLIT_RULE, held_out

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
DEFAULT_SIZE = 32


def load_imagefolder(path: Path, options: TaskOptions) -> Task:
    """Load ``path/CLASS/*.png``, or ``path/train/CLASS/*.png`` and ``path/test/CLASS/*.png``.

    Without the two folders :mod:`groupclip.tasks.split` decides what is held out.

    Images become RGB, resized to ``image_size`` squared, ``(x - 127.5) / 127.5``. Every file is opened once
    here, so a file that is no image is found before the training starts.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: no class folders, one class only, an empty class, a file that isn't a readable image.
    """
    if not path.is_dir():
        raise FileNotFoundError(
            f"task 'imagefolder': {path} is no folder. It should hold one sub-folder of images for each "
            "class, or 'train' and 'test' with such sub-folders"
        )
    size = DEFAULT_SIZE if options.image_size is None else options.image_size
    if size < 1:
        raise ValueError(f"image_size={size} must be at least 1 pixel")
    if (path / "train").is_dir() != (path / "test").is_dir():
        raise ValueError(f"{path} has only one of the folders 'train' and 'test'; give both, or neither")
    presplit = (path / "train").is_dir()
    root = path / "train" if presplit else path
    classes = options.classes or _subfolders(root)
    if len(classes) < 2:
        raise ValueError(f"{root} has {len(classes)} class folder(s) {list(classes)}; two are the least")

    found = _find(root, classes)
    if presplit:
        train, test = found, _find(path / "test", classes)
    else:
        marks = [held_out(f"{file.parent.name}/{file.name}") for file, _ in found]
        train = [item for item, mark in zip(found, marks, strict=True) if not mark]
        test = [item for item, mark in zip(found, marks, strict=True) if mark]
        if not train or not test:
            raise ValueError(
                f"{path} has {len(found)} image(s), too few to hold out one in five; make folders 'train' and 'test'"
            )
    public = None if options.public is None else _records(_find(Path(options.public), classes), size)
    return Task(
        name="imagefolder",
        kind="image",
        train=_records(train, size),
        test=_records(test, size),
        public=public,
        input_shape=(3, size, size),
        classes=classes,
        description={
            "name": "imagefolder",
            "train_size": len(train),
            "test_size": len(test),
            "source": "local image files",
            "licence": "not known",
            "preprocessing": f"RGB, resized to {size}x{size}, (x - 127.5) / 127.5, fixed beforehand",
            "split": "folders train and test" if presplit else SPLIT_RULE,
            "label_set": "given" if options.classes else "the folder names, taken as public",
        },
    )


def decode(path: Path, size: int) -> Tensor:
    """One image file as float32 ``[3, size, size]`` in [-1, 1]. ValueError if it can't be decoded."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} can't be decoded as an image: {error}. Repair it or take it out") from error
    pixels = np.array(image, dtype=np.float32)  # [H, W, 3]
    return torch.from_numpy(pixels).sub_(127.5).div_(127.5).permute(2, 0, 1).contiguous()


def _subfolders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))


def _find(root: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Every image file below ``root/CLASS``, in a fixed order, with the number of its class."""
    from PIL import Image, UnidentifiedImageError

    found: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        folder = root / name
        if not folder.is_dir():
            raise ValueError(f"{root} has no folder '{name}', which is one of the classes {list(classes)}")
        files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
        if not files:
            raise ValueError(f"{folder} holds no image file ({', '.join(SUFFIXES)})")
        found.extend((file, label) for file in files)
    if unknown := [name for name in _subfolders(root) if name not in classes]:
        raise ValueError(f"{root} has the folder '{unknown[0]}', which is none of the classes {list(classes)}")
    for file, _ in found:
        try:
            with Image.open(file) as image:
                image.verify()
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{file} can't be read as an image: {error}. Repair it or take it out") from error
    return found


def _records(found: list[tuple[Path, int]], size: int) -> ImageFiles:
    return ImageFiles(tuple(file for file, _ in found), tuple(label for _, label in found), size)
