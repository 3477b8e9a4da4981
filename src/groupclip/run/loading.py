"""The task of a run that begins, and of one that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tasks import Task, load_task
from ..tasks.telling import Told, UnreadableImages
from .config import task_options
from .errors import ConfigError
from .shortage import OF_RECORDS, enough_memory


def loaded(settings: Mapping[str, Any], workers: int, told: Told | None) -> Task:
    """Return the task that settings of a run name. Other arguments, and errors, as of :func:`groupclip.tasks.load_task`."""
    options = task_options(settings.get("task_options", {}))
    with enough_memory("the records as the model reads them", *OF_RECORDS):
        return load_task(settings["task"], settings.get("data"), options, workers=workers, told=told)


def loaded_again(settings: Mapping[str, Any], workers: int, told: Told | None) -> Task:
    """Do :func:`loaded` for a run that has begun: nobody is told to take a record out that the run counts.

    Raises:
        ConfigError: files that can't be decoded any more.
    """
    try:
        return loaded(settings, workers, told)
    except UnreadableImages as error:
        raise ConfigError(
            f"files that could be read when the run began can't be any more:\n{error.listed}\nPut them back as they were: the run "
            "counts every record that it began with, and can't go on without one. Without them, start another run"
        ) from error
