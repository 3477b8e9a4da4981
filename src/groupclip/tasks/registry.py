"""Names to tasks."""

from __future__ import annotations

import difflib
from pathlib import Path

from .csvtext import load_csv
from .digits import load_digits
from .imagefolder import load_imagefolder
from .mnist import FASHION_MNIST, MNIST, load_mnist
from .spec import Task, TaskOptions, Told

# name -> the options that mean something to it
TASKS: dict[str, tuple[str, ...]] = {
    "digits": (),
    "mnist": (),
    "fashion-mnist": (),
    "imagefolder": ("image_size", "classes", "public"),
    "csv": (
        "text_column", "label_column", "user_column", "max_length", "vocabulary", "prefix",
        "encoder", "classes", "test", "public",
    ),
}  # fmt: skip


def load_task(
    name: str,
    data: str | Path | None = None,
    options: TaskOptions | None = None,
    *,
    workers: int = 0,
    told: Told | None = None,
) -> Task:
    """Load a task by name; all but ``digits`` need the path of their data.

    The path stands after a colon (``csv:reviews.csv``) or in ``data``. ``workers``: threads that decode images here.
    ``told``: of how many images are decoded, and how many there are.

    Raises:
        ValueError: unknown task, a path too many or too few, an option that the task has no use for,
            or files that don't hold what they should.
        FileNotFoundError: nothing at the path.
    """
    options = options or TaskOptions()
    kind, colon, after = name.partition(":")
    if kind not in TASKS:
        near = difflib.get_close_matches(kind, TASKS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        known = "digits, mnist:PATH, fashion-mnist:PATH, imagefolder:PATH, csv:PATH"
        raise ValueError(f"unknown task '{kind}'; {hint}Tasks: {known}")
    if idle := [option for option in options.given() if option not in TASKS[kind]]:
        usable = ", ".join(TASKS[kind]) or "none"
        raise ValueError(f"task option {idle[0]}={getattr(options, idle[0])} means nothing to task '{kind}'; its options: {usable}")
    if colon and data is not None:
        raise ValueError(f"task '{name}' has a path already, and data={str(data)!r} is another; give one")
    path = after if colon else data
    if kind == "digits":
        if path is not None:
            raise ValueError(f"task 'digits' ships with scikit-learn and takes no path, not {str(path)!r}")
        return load_digits()
    if not path:
        raise ValueError(f"task '{kind}' needs the path of its data: write '{kind}:PATH'")
    path = Path(path).expanduser()
    match kind:
        case "mnist":
            return load_mnist(MNIST, path)
        case "fashion-mnist":
            return load_mnist(FASHION_MNIST, path)
        case "imagefolder":
            return load_imagefolder(path, options, workers, told)
        case _:
            return load_csv(path, options)
