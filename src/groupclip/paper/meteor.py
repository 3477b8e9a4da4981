"""METEOR 1.5 (Denkowski and Lavie 2014) by its own Java program, which the package pycocoevalcap ships with its tables.

NLTK's METEOR is no substitute: it implements the metric of 2005, without paraphrases, and looks up synonyms of what its
stemmer has left of a word, so that "car" and "automobile" don't match.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .source import MissingSource

INSTALL = (
    "pip install --no-deps pycocoevalcap (100 MB), and install a Java runtime: apt-get install default-jre-headless"
)
JAR = Path("meteor") / "meteor-1.5.jar"
SEPARATOR = " ||| "


def program() -> tuple[str, Path]:
    """Return where Java and the program are. ``MissingSource`` says what is missing and how to get it."""
    spec = importlib.util.find_spec("pycocoevalcap")
    places = [] if spec is None else [Path(place) / JAR for place in spec.submodule_search_locations or ()]
    jar = next((place for place in places if place.is_file()), None)
    java = shutil.which("java")
    if java is None or jar is None:
        absent = "the package 'pycocoevalcap'" if jar is None else "Java"
        raise MissingSource(f"the metric meteor needs {absent}, which isn't installed; run: {INSTALL}")
    return java, jar


def corpus_meteor(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """METEOR of all outputs together, in [0, 1], as the COCO and E2E scripts take it: English, normalised, default weights.

    Raises:
        MissingSource: Java or the program isn't here.
        RuntimeError: the program ended without a score; its last words are in the message.
    """
    java, jar = program()
    command = [java, "-Xmx2G", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            ask = _Dialogue(process.stdin, process.stdout)
            statistics = [
                ask("SCORE", *map(_line, texts), _line(output))
                for output, texts in zip(outputs, references, strict=True)
            ]
            ask("EVAL", *statistics)  # the score of the first output; one line more for each of the others
            for _ in outputs[1:]:
                ask.read()
            return float(ask.read())  # all together
        finally:
            process.kill()


class _Dialogue:
    """One line out, one line back."""

    def __init__(self, out: IO[str], back: IO[str]) -> None:
        self._out, self._back = out, back

    def __call__(self, *parts: str) -> str:
        try:
            self._out.write(SEPARATOR.join(parts) + "\n")
            self._out.flush()
        except BrokenPipeError:
            pass  # the program has ended; what it said is read below
        return self.read()

    def read(self) -> str:
        line = self._back.readline()
        if not line:
            raise RuntimeError(
                "METEOR's program ended without a score; run it by hand to see why: java -jar meteor-1.5.jar"
            )
        return line.strip()


def _line(text: str) -> str:
    return " ".join(text.replace("|||", " ").split())
