"""Every Python block of the README and of docs/ runs as written; one marked ``continued``, after the one above it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import groupclip

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```python( continued)?\n(.*?)^```", re.M | re.S)


def blocks(page: Path) -> list[str]:
    found: list[str] = []
    for continued, block in FENCE.findall(page.read_text(encoding="utf-8")):
        found.append(f"{found.pop()}\n{block}" if continued else block)
    return found


BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for i, block in enumerate(blocks(page))
]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks it of transformers
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # of torch's compiler, which shows it to nobody
@pytest.mark.parametrize("block", BLOCKS)
def test_code_block(block: str) -> None:
    for extra in re.findall(r"^from (transformers|peft) import", block, re.M):
        pytest.importorskip(extra)
    exec(compile(block, "<docs>", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_names_exist(page: Path) -> None:
    """Those in running text and in tables too: ``gc.attach``, ``groupclip.memory.plan``."""
    for path in sorted(set(re.findall(r"\b(?:gc|groupclip)((?:\.[A-Za-z_]\w*)+)", page.read_text(encoding="utf-8")))):
        found: object = groupclip
        for name in path[1:].split("."):
            if not hasattr(found, name) and isinstance(found, ModuleType):
                import_module(f"{found.__name__}.{name}")
            found = getattr(found, name)


def test_blocks_were_found() -> None:
    assert len(BLOCKS) >= 3
