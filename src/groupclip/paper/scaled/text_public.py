"""Public texts of another kind than the private ones: what standardises the features of the SST-2 experiment.

Sentences of Amazon reviews and New York Times editorials, from the resources of VADER (Hutto and Gilbert 2014). Its film reviews
are left out: they are of the sort that SST-2 was cut from. Ratings aren't used.
"""

from __future__ import annotations

from pathlib import Path

from ..source import MissingSource
from .text_data import Text

PUBLIC = ("amazonReviewSnippets_GroundTruth.txt", "nytEditorialSnippets_GroundTruth.txt")
HOW = (
    "pip download --no-deps --no-binary vaderSentiment vaderSentiment==3.3.2; unpack it, and in it "
    "additional_resources/hutto_ICWSM_2014.tar.gz, and copy the file"
)
CLEAR = 0.5  # mean rating in [-4, 4] from which on a sentence counts as positive or negative


def public_texts(folder: Path) -> list[Text]:
    """Return (text in lower case, 1 if it is rated positive).

    Raises:
        MissingSource: a file isn't there.
    """
    found: list[Text] = []
    for name in PUBLIC:
        if not (folder / name).exists():
            raise MissingSource(f"there is no {folder / name}. To get it: {HOW} there")
        # only \r\n ends a line; an identifier, the rating and the text
        for line in (folder / name).read_bytes().decode("utf-8", errors="replace").split("\r\n"):
            if line:
                _, rating, text = line.split("\t", 2)
                if abs(float(rating)) >= CLEAR:
                    found.append((text.lower(), int(float(rating) > 0)))
    return found
