"""Every Python block of the README and of docs/ runs as written; one marked ``continued``, after the one above it."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pytest

import groupclip
from groupclip.cli.app import app

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```python( continued)?\n(.*?)^```", re.M | re.S)


def blocks(page: Path) -> list[str]:
    found: list[str] = []
    for continued, block in FENCE.findall(page.read_text(encoding="utf-8")):
        found.append(f"{found.pop()}\n{block}" if continued else block)
    return found


def commands(page: Path) -> list[list[str]]:
    """Command lines: those of code blocks, and those in running text that have options."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^    groupclip ([a-z][^\n]*)$", text, re.M) + re.findall(
        r"`groupclip ([a-z]+ [^`\n]*--[^`\n]*)`", text
    )
    shown = [re.sub(r"\bN\b", "1", line) for line in lines if not line.endswith("--help")]  # N: a number
    return [shlex.split(line, comments=True) for line in shown]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in PAGES
    for i, block in enumerate(blocks(page))
]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks it of transformers
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # of torch's compiler, which shows it to nobody
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated", "ignore:The number of training batches")  # Lightning's own
@pytest.mark.parametrize("block", BLOCKS)
def test_code_block(block: str) -> None:
    for extra in re.findall(r"^(?:from|import) (transformers|peft|lightning)\b", block, re.M):
        pytest.importorskip(extra)
    exec(compile(block, "<docs>", "exec", dont_inherit=True), {"__name__": "docs"})  # as a user runs it


@pytest.mark.parametrize("page", [page for page in ALL if page.stem != "CONTRIBUTING"], ids=lambda page: page.name)
def test_names_exist(page: Path) -> None:
    """Those in running text and in tables too: ``gc.attach``, ``groupclip.memory.plan``."""
    for path in sorted(set(re.findall(r"\b(?:gc|groupclip)((?:\.[A-Za-z_]\w*)+)", page.read_text(encoding="utf-8")))):
        found: object = groupclip
        for name in path[1:].split("."):
            if not hasattr(found, name) and isinstance(found, ModuleType):
                try:
                    import_module(f"{found.__name__}.{name}")
                except ModuleNotFoundError as error:  # an integration, whose host isn't installed
                    if str(error.name).startswith("groupclip") or found.__name__ != "groupclip.integrations":
                        raise
                    break
            found = getattr(found, name)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_commands_take_the_options_that_they_are_shown_with(page: Path) -> None:
    for arguments in commands(page):
        command = app.commands[arguments[0]]
        command.make_context(arguments[0], arguments[1:])  # a click.UsageError otherwise


_PATH = r"(?<![\w/.-])((?:tests|src|docs|scripts|benchmarks|examples)/(?:[\w*-]+/)*(?:[\w*-]+\.[a-z]+|(?=`)))"
#: What the worked examples of CONTRIBUTING.md would add.
EXAMPLES = {
    "src/groupclip/rules/index_select.py", "tests/rules/test_index_select.py",
    "src/groupclip/tasks/jsonl.py", "tests/tasks/test_jsonl.py",
}  # fmt: skip


def named_paths(page: Path) -> set[str]:
    """Files and folders of the repository that a page names by their path, and where its links lead to."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)  # code has brackets of its own
    named = set(re.findall(_PATH, text))
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    return named | {(page.parent / link).resolve().relative_to(ROOT.resolve()).as_posix() for link in links}


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_paths_lead_somewhere(page: Path) -> None:
    absent = {path for path in named_paths(page) - EXAMPLES if not list(ROOT.glob(path.rstrip("/")))}
    assert not absent


def test_paths_were_found() -> None:
    assert {"tests/test_refusals.py", "tests/privacy.txt", "docs/mutants.md"} <= named_paths(ROOT / "SECURITY.md")


def test_commands_were_found() -> None:
    assert ["train", "--task", "digits", "--epsilon", "3", "--out", "runs/digits"] in commands(ROOT / "README.md")
    with pytest.raises(click.UsageError):
        app.commands["train"].make_context("train", ["--no-such-option"])


def test_the_readme_tells_for_whom_it_is_how_to_install_it_and_one_time_of_the_demo() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "https://arxiv.org/abs/2310.19215" in page
    assert page.index("**For whom.**") < page.index("## Install") < page.index("## Two commands")
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(re.findall(r"pip install -e \"\.\[(\w+)\]\"", page))
    assert extras == {"cli", "transformers", "lightning", "flower", "docs", "dev"} <= set(facts["optional-dependencies"])
    assert f"Python {facts['requires-python'].removeprefix('>=')} or newer" in page
    time = r"(about \w+ seconds|about \w+ minutes?|\w+ to \w+ minutes) on one core"
    told = [re.findall(time, text) for text in (page, (ROOT / "scripts" / "demo").read_text(encoding="utf-8"))]
    assert len(told[0]) == 1
    assert told[0] == told[1]


def test_blocks_were_found() -> None:
    assert len(BLOCKS) >= 3
