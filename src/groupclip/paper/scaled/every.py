"""Every scaled experiment there is."""

from . import e2e, text, vision
from .experiment import ScaledExperiment


def experiments() -> list[ScaledExperiment]:
    """Return every scaled experiment. A new one is a module with an ``EXPERIMENTS`` list, and a word here."""
    return [*e2e.EXPERIMENTS, *text.EXPERIMENTS, *vision.EXPERIMENTS]
