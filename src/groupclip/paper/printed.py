"""The paper's settings table, and what is public about its data sets: ``as_printed/settings.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..clipping.adaptive import Adaptive

PAPER = Path(__file__).parent / "as_printed"


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score of a data set: its name in results, its title (empty if there is one only), and how many digits are printed."""

    name: str
    title: str
    digits: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One column of the settings table, for one data set.

    feature: pixels a side, or tokens. microbatch: "virtual batch size". records: of the training set.
    epsilons: those that the tables ask for.
    """

    data: str
    title: str
    models: tuple[str, ...]
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    feature: int
    microbatch: int
    records: int
    epsilons: tuple[float, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Everything in settings.yaml.

    data: name -> settings. abadi_threshold, adaptive: of the literature's rows. not_run: name -> why a method isn't run.
    """

    data: Mapping[str, Settings]
    abadi_threshold: float
    adaptive: Adaptive
    not_run: Mapping[str, str]

    def of(self, data: str) -> Settings:
        """Look up a data set's settings; ValueError if the paper doesn't have it."""
        if data not in self.data:
            raise ValueError(f"data {data!r} isn't in the paper; it has {', '.join(self.data)}")
        return self.data[data]

    def width(self, data: str) -> int:
        """Return how many scores one cell has."""
        return len(self.of(data).scores)


@cache
def printed_settings() -> Printed:
    """Return the settings as printed."""
    facts = read("settings")
    found: dict[str, Settings] = {}
    for column in facts["columns"]:
        for name in column["data"]:
            found[name] = _settings(name, column, facts["data"][name])
    return Printed(
        data=found,
        abadi_threshold=facts["abadi_threshold"],
        adaptive=Adaptive(**facts["adaptive"]),
        not_run=facts["not_run"],
    )


def _settings(name: str, column: Mapping[str, Any], public: Mapping[str, Any]) -> Settings:
    given = {key: value for key, value in column.items() if key not in ("data", "models")}
    return Settings(
        data=name,
        title=public["title"],
        models=tuple(column["models"]),
        records=public["records"],
        epsilons=tuple(float(epsilon) for epsilon in public["epsilons"]),
        scores=tuple(Score(name=key, title=title, digits=digits) for key, title, digits in public["scores"]),
        **given,
    )


def read(name: str) -> Any:
    """Return the content of ``paper/NAME.yaml``."""
    import yaml

    return yaml.safe_load((PAPER / f"{name}.yaml").read_text(encoding="utf-8"))
