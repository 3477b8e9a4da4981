"""The site: ``pip install -e ".[docs]"``, then ``sphinx-build -W docs site``. The pages are the Markdown files as they are."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

project = "groupclip"
author = "the groupclip developers"
release = version = installed("groupclip")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"groupclip {release}"
exclude_patterns = ["**/*.in.md"]  # what pages are written from

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
napoleon_google_docstring = True
napoleon_custom_sections = ["Guarantee"]
napoleon_use_rtype = False

#: A link to a file of the repository, which has no page here.
_OUTSIDE = re.compile(r"\[([^]]+)\]\((?:\.\./|[\w-]+\.(?:json|py))[^)]*\)")


def _unlink(app: Any, name: str, source: list[str]) -> None:
    source[0] = _OUTSIDE.sub(lambda found: found[1], source[0])


def _list_the_rest(app: Any, name: str, source: list[str]) -> None:
    """List in the index what its author forgot: a page that nothing leads to would be lost."""
    if name == "index":
        listed = {line.strip() for block in re.findall(r"```{toctree}(.*?)```", source[0], re.S) for line in block.splitlines()}
        rest = sorted(app.env.found_docs - listed - {"index"})
        if rest:
            source[0] += "\n```{toctree}\n:caption: More\n:maxdepth: 1\n\n" + "\n".join(rest) + "\n```\n"


def _escape(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Norms are written ``||x||``: no substitutions of reStructuredText."""
    lines[:] = [re.sub(r"(?<!`)\|(?!`)", r"\\|", line) if "``" not in line else line for line in lines]


def setup(app: Any) -> None:
    app.connect("source-read", _unlink)
    app.connect("source-read", _list_the_rest)
    app.connect("autodoc-process-docstring", _escape, priority=400)
