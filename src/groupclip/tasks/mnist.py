"""``mnist`` and ``fashion-mnist`` from local files: four IDX files in a folder, or one .npz file."""

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch.utils.data import TensorDataset

from .idx import read_idx
from .scattering import GROUPS, scattered
from .spec import Task

IDX_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
NPZ_KEYS = (("x_train", "y_train", "x_test", "y_test"), ("train_x", "train_y", "test_x", "test_y"))


@dataclass(frozen=True)
class Published:
    """Public facts of one published data set."""

    name: str
    classes: tuple[str, ...]
    source: str
    licence: str
    where: str


MNIST = Published(
    name="mnist",
    classes=tuple(str(digit) for digit in range(10)),
    source="MNIST (Y. LeCun, C. Cortes, C. Burges), read from local files",
    licence="not stated by its authors",
    where="the MNIST page of Y. LeCun, or any mirror of its four files",
)
FASHION_MNIST = Published(
    name="fashion-mnist",
    classes=(
        "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    source="Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf, 2017), read from local files",
    licence="MIT",
    where="github.com/zalandoresearch/fashion-mnist (folder data/fashion)",
)  # fmt: skip


def load_mnist(published: Published, path: Path, features: str | None = None) -> Task:
    """Load MNIST-like images from ``path``: a folder with the four IDX files, or an .npz file.

    Inputs are ``(x - 127.5) / 127.5``, float32 ``[1, H, W]``. The usual mean and deviation are left alone on
    purpose: they are statistics of the training images, which are the private records here. With ``features="scattering"`` they
    become maps ``[81, H // 4, W // 4]``, each image's by itself.

    Raises:
        FileNotFoundError: nothing at ``path``, or one of the four files is missing.
        ValueError: a file that is damaged or doesn't hold what it should; other features.
    """
    if features not in (None, "scattering"):
        raise ValueError(f"features={features!r} are unknown; use scattering, or leave it out for pixels")
    x, y, x_test, y_test = _read_npz(path) if path.is_file() else _read_folder(published, path)
    train, test = _records(path, "training", x, y), _records(path, "test", x_test, y_test)
    if x.shape[1:] != x_test.shape[1:]:
        raise ValueError(f"{path}: training images have {x.shape[1:]} pixels, test images {x_test.shape[1:]}")
    preprocessing = "(x - 127.5) / 127.5, fixed beforehand"
    if features is not None:
        train, test = (TensorDataset(scattered(part.tensors[0]), part.tensors[1]) for part in (train, test))
        preprocessing += f"; scattering of two scales and eight angles, normalised in {GROUPS} groups within each image"
    return Task(
        name=published.name,
        kind="image",
        train=train,
        test=test,
        public=test,  # a published data set: its test images need no protection
        input_shape=tuple(train.tensors[0].shape[1:]),
        classes=published.classes,
        description={
            "name": published.name,
            "train_size": len(train),
            "test_size": len(test),
            "source": published.source,
            "licence": published.licence,
            "preprocessing": preprocessing,
            "split": "as published",
        },
    )


def _read_folder(published: Published, path: Path) -> list[np.ndarray]:
    help_text = (
        f"groupclip fetches nothing by itself. Get the files from {published.where}, then pass their folder "
        f"(names {IDX_STEMS[0]}[.gz], {IDX_STEMS[1]}[.gz], t10k-...), or an .npz file with the arrays "
        f"{', '.join(NPZ_KEYS[0])}"
    )
    if not path.exists():
        raise FileNotFoundError(f"task '{published.name}': there is nothing at {path}. {help_text}")
    arrays = []
    for stem in IDX_STEMS:
        found = [file for file in (path / stem, path / f"{stem}.gz") if file.is_file()]
        if not found:
            raise FileNotFoundError(f"task '{published.name}': {path} has no {stem}[.gz]. {help_text}")
        arrays.append(read_idx(found[0], dimensions=3 if "images" in stem else 1))
    return arrays


def _read_npz(path: Path) -> list[np.ndarray]:
    try:
        # opened here, since numpy leaves a damaged file open
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds one bare array")
            for keys in NPZ_KEYS:
                if all(key in archive for key in keys):
                    return [archive[key] for key in keys]
            found = ", ".join(archive.files)
    except (ValueError, OSError, BadZipFile, EOFError) as error:
        raise ValueError(f"{path} can't be read as an .npz file of plain arrays: {error}") from error
    wanted = " or ".join(", ".join(keys) for keys in NPZ_KEYS)
    raise ValueError(f"{path} holds the arrays [{found}]; needed are {wanted}")


def _records(path: Path, part: str, x: np.ndarray, y: np.ndarray) -> TensorDataset:
    if x.dtype != np.uint8 or x.ndim != 3:
        raise ValueError(f"{path}: {part} images are {x.dtype} {x.shape}; needed is uint8 (N, height, width)")
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise ValueError(f"{path}: {part} labels are {y.dtype} {y.shape}; needed is one integer for each of "
                         f"{len(x)} images")  # fmt: skip
    if len(x) == 0:
        raise ValueError(f"{path}: there are no {part} images")
    if y.min() < 0 or y.max() > 9:
        raise ValueError(f"{path}: {part} labels run from {y.min()} to {y.max()}; needed are classes 0 to 9")
    images = torch.from_numpy(x.astype(np.float32)).sub_(127.5).div_(127.5).unsqueeze(1)  # [N, 1, H, W]
    return TensorDataset(images, torch.from_numpy(y.astype(np.int64)))
