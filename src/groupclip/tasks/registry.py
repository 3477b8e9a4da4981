"""Names to tasks."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Protocol

from .csvtext import load_csv
from .digits import load_digits
from .imagefolder import load_imagefolder
from .mnist import FASHION_MNIST, MNIST, load_mnist
from .spec import Task, TaskOptions
from .telling import Told


class Loader(Protocol):
    """Loads a task from the files at ``path``. ``workers`` and ``told`` are as of :func:`load_task`."""

    def __call__(self, path: Path, options: TaskOptions, workers: int, told: Told | None, /) -> Task: ...


# name -> the options that mean something to it
TASKS: dict[str, tuple[str, ...]] = {
    "digits": (),
    "mnist": ("features",),
    "fashion-mnist": ("features",),
    "imagefolder": ("image_size", "classes", "public"),
    "csv": (
        "text_column", "label_column", "user_column", "max_length", "vocabulary", "prefix",
        "encoder", "classes", "test", "public",
    ),
}  # fmt: skip

#: name -> what loads it from a path; ``digits`` alone has none.
LOADERS: dict[str, Loader] = {
    "mnist": lambda path, options, *_: load_mnist(MNIST, path, options.features),
    "fashion-mnist": lambda path, options, *_: load_mnist(FASHION_MNIST, path, options.features),
    "imagefolder": load_imagefolder,
    "csv": lambda path, options, *_: load_csv(path, options),
}


def load_task(
    name: str,
    data: str | Path | None = None,
    options: TaskOptions | None = None,
    *,
    workers: int = 0,
    told: Told | None = None,
) -> Task:
    """Load a task by name; all but ``digits`` need the path of their data.

    Args:
        name: the task. The path may stand after a colon: ``csv:reviews.csv``.
        data: the path, if it isn't in ``name``.
        options: how files are read.
        workers: threads that decode images here.
        told: called with the number of decoded images, and with the number of all.

    Raises:
        ValueError: an unknown task, a path too many or too few, an option that the task has no use for,
            or files that don't hold what they should.
        FileNotFoundError: nothing is at the path.
    """
    options = options or TaskOptions()
    kind, colon, after = name.partition(":")
    if kind not in TASKS:
        near = difflib.get_close_matches(kind, TASKS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        known = ", ".join(f"{task}:PATH" if task in LOADERS else task for task in TASKS)
        raise ValueError(f"unknown task '{kind}'; {hint}Tasks: {known}")
    if idle := [option for option in options.given() if option not in TASKS[kind]]:
        usable = ", ".join(TASKS[kind]) or "none"
        raise ValueError(f"task option {idle[0]}={getattr(options, idle[0])} means nothing to task '{kind}'; its options: {usable}")
    if colon and data is not None:
        raise ValueError(f"task '{name}' has a path already, and data={str(data)!r} is another; give one")
    path = after if colon else data
    if kind not in LOADERS:
        if path is not None:
            raise ValueError(f"task 'digits' ships with scikit-learn and takes no path, not {str(path)!r}")
        return load_digits()
    if not path:
        raise ValueError(f"task '{kind}' needs the path of its data: write '{kind}:PATH'")
    return LOADERS[kind](Path(path).expanduser(), options, workers, told)
