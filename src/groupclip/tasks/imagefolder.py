"""``imagefolder:PATH``: one sub-folder of image files for each class, with or without a train/test split.

Errors and remarks name files or count them: that is for the person at the terminal, who owns the data. Nothing of it goes into a
task's description, so no file name reaches a release.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from groupclip.sampling.names import plain

from .finding import SUFFIXES, LeftOut, beside, class_folders, images_below
from .imagefiles import ImageFiles
from .images import Seen, see
from .spec import Task, TaskOptions
from .split import SPLIT_RULE, held_out
from .telling import Told

DEFAULT_SIZE = 32
HELD_BYTES = 1 << 30  # of decoded images that are kept in memory, the held-out ones first

COPY = "it is a copy of another file, byte by byte, and one record would count twice"
TWO_CLASSES = "the same file, byte by byte, is in several classes"

Found = list[tuple[Path, int]]


def load_imagefolder(path: Path, options: TaskOptions, workers: int = 0, told: Told | None = None) -> Task:
    """Load ``path/CLASS/*.png``, or ``path/train/CLASS/*.png`` and ``path/test/CLASS/*.png``.

    Without the two folders :mod:`groupclip.tasks.split` decides what is held out.

    Images become RGB (:mod:`groupclip.tasks.pictures`), resized to ``image_size`` squared, ``(x - 127.5) / 127.5``. Every file
    is decoded once here, so all that can't be are told before a run begins. What is left out is in ``Task.remarks``.

    Args:
        workers: threads that decode here.
        told: told of each file that is done.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: no class folders, one class only, an empty class, classes whose names are one, training images that are held
            out or public too.
        UnreadableImages: files that can't be decoded, all of them.
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
    classes = tuple(map(plain, options.classes or ())) or tuple(sorted(class_folders(root)))
    if len(set(classes)) < len(classes):
        raise ValueError(f"option classes names a class twice: {list(classes)}")
    if len(classes) < 2:
        raise ValueError(f"{root} has {len(classes)} class folder(s) {list(classes)}; two are the least")

    left_out = LeftOut()
    found = _find(root, classes, left_out)
    test_found: Found = []
    if presplit:
        beside(path, ("train", "test"), left_out)
        test_found = _find(path / "test", classes, left_out)
    public_found = None if options.public is None else _find(Path(options.public), classes, left_out)

    # what is looked at again and again comes first
    room = HELD_BYTES // (3 * size * size)
    keep_rest = len(test_found) + len(public_found or ()) <= room
    keep = keep_rest and len(found) + len(test_found) + len(public_found or ()) <= room
    files = [(file, label, keep) for file, label in found]
    files += [(file, label, keep_rest) for file, label in (*test_found, *(public_found or ()))]
    seen = see(files, size, workers, told)
    first, second = len(found), len(found) + len(test_found)
    several = sum(one.several for one in seen)

    train = _without_copies(seen[:first], left_out)
    test = seen[first:second]
    if not presplit:
        marks = [held_out(plain(f"{one.path.parent.name}/{one.path.name}")) for one in train]
        test = [one for one, mark in zip(train, marks, strict=True) if mark]
        train = [one for one, mark in zip(train, marks, strict=True) if not mark]
        if not train or not test:
            raise ValueError(
                f"{path} has {len(train) + len(test)} image(s), too few to hold out one in five; make folders 'train' and 'test'"
                + "".join(f"\n{remark}" for remark in left_out.remarks())
            )
    if presplit:
        _refuse_shared(train, test, path / "test")
    public = None if public_found is None else seen[second:]
    _refuse_shared(train, public or (), options.public)
    if not train:
        raise ValueError(f"{root}: no image is left\n" + "\n".join(left_out.remarks()))
    told_of = [f"{several} file(s) hold several pictures (frames, pages): the first of each is used"] if several else []
    return Task(
        name="imagefolder",
        kind="image",
        train=_records(train, size),
        test=_records(test, size),
        public=None if public is None else _records(public, size),
        input_shape=(3, size, size),
        classes=classes,
        description={
            "name": "imagefolder",
            "train_size": len(train),
            "test_size": len(test),
            "source": "local image files",
            "licence": "not known",
            "preprocessing": "upright, transparent parts on white, RGB by the range of each mode, resized to "
            f"{size}x{size}, (x - 127.5) / 127.5, fixed beforehand",
            "split": "folders train and test" if presplit else SPLIT_RULE,
            "label_set": "given" if options.classes else "the folder names, taken as public",
        },
        remarks=(*left_out.remarks(), *told_of),
    )


def _find(root: Path, classes: tuple[str, ...], left_out: LeftOut) -> Found:
    """Return every image file below ``root/CLASS``, in a fixed order, with the number of its class."""
    folders = class_folders(root)
    found: Found = []
    for label, name in enumerate(classes):
        if name not in folders:
            raise ValueError(f"{root} has no folder '{name}', which is one of the classes {list(classes)}")
        files = images_below(folders[name], left_out)
        if not files:
            raise ValueError(f"{folders[name]} holds no image file ({', '.join(SUFFIXES)})")
        found.extend((file, label) for file in files)
    if unknown := [name for name in folders if name not in classes]:
        raise ValueError(f"{root} has the folder '{unknown[0]}', which is none of the classes {list(classes)}")
    beside(root, [folder.name for folder in folders.values()], left_out)
    return found


def _without_copies(seen: Sequence[Seen], left_out: LeftOut) -> list[Seen]:
    """Return one record for each content; none where its classes differ.

    So a file more in the folder, whatever is in it, moves the records by one at most, which is what neighbouring data sets are.
    """
    labels: dict[bytes, set[int]] = {}
    for one in seen:
        labels.setdefault(one.digest, set()).add(one.label)
    kept: dict[bytes, Seen] = {}
    counted: Counter[str] = Counter()
    for one in seen:
        if len(labels[one.digest]) > 1:
            counted[TWO_CLASSES] += 1
        elif one.digest in kept:
            counted[COPY] += 1
        else:
            kept[one.digest] = one
    left_out.images += counted
    return list(kept.values())


def _refuse_shared(train: Sequence[Seen], others: Sequence[Seen], name: object) -> None:
    """Raise ValueError for training images that are held out, or public, too: what is measured there is told without noise."""
    private = {one.digest: one.path for one in train}
    shared = [f"  {one.path} is {private[one.digest]}" for one in others if one.digest in private]
    if shared:
        listed = "\n".join(shared)
        raise ValueError(
            f"{len(shared)} image(s) of {name} are training images too, byte by byte: accuracy and loss there are told without "
            f"noise, and would tell of private records\n{listed}\nTake each of them out of one of the two"
        )


def _records(seen: Sequence[Seen], size: int) -> ImageFiles:
    held = tuple(one.pixels for one in seen if one.pixels is not None)
    return ImageFiles(
        tuple(one.path for one in seen),
        tuple(one.label for one in seen),
        size,
        tuple(one.digest for one in seen),
        held if len(held) == len(seen) else None,
    )
