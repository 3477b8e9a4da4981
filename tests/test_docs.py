"""Every Python block of the README and of docs/ runs as written; one marked ``continued``, after the one above it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def test_blocks_were_found() -> None:
    assert len(BLOCKS) >= 3
