"""The files that a repository is judged by before its code: licence, citation, changelog, facts of the package."""

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
# of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def importers(package: str) -> set[str]:
    """Names of the source files that import ``package``."""
    pattern = re.compile(rf"^\s*(?:import|from) {package}\b", re.M)
    return {path.name for path in (ROOT / "src").rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))}


def test_the_licence_is_apache_2_in_full_and_the_package_names_it():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert PROJECT["license"] == CITATION["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache-2.0" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_citation_names_the_paper_as_the_readme_does():
    paper = CITATION["preferred-citation"]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"({paper['url']})" in page
    assert paper["title"] in " ".join(page.split())
    assert paper["url"].removeprefix("https://arxiv.org/abs/") in paper["journal"]
    names = [author["family-names"] for author in paper["authors"]]
    assert f"{', '.join(names[:-1])} and {names[-1]}" in " ".join(page.split())
    assert paper["year"] == 2023
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["version"] == PROJECT["version"]


def test_the_changelog_has_a_section_for_the_version():
    """What isn't released yet says which version it becomes."""
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^]]*)\]", page, re.M)
    assert f"becomes {PROJECT['version']}." in page or PROJECT["version"] in released
    assert set(re.findall(r"^### (\w+)$", page, re.M)) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_two_files_import_dp_accounting_and_pyproject_names_them():
    assert importers("dp_accounting") == {"accounting.py", "distributions.py"}
    assert "accounting.py and distributions.py alone import it" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_twin_imports_are_found():
    assert "ledger.py" not in importers("torch")
    assert len(importers("torch")) > 20


#: First words of a summary that has no verb in front: a fragment, which needs the code to be understood.
NOT_VERBS = {
    "A", "About", "After", "All", "An", "And", "As", "At", "Because", "Before", "Below", "Between", "Both", "By",
    "Each", "Every", "For", "From", "How", "If", "In", "Inside", "Its", "Like", "No", "Of", "On", "One", "Out",
    "Some", "The", "These", "This", "Those", "To", "Under", "What", "When", "Where", "Whether", "Which", "While",
    "Who", "Whose", "Why", "With", "Without", "Names", "Norms", "Bytes", "Epsilon", "Gradients", "Accuracy", "Rows",
    "Samples", "ValueError",
}  # fmt: skip


def summaries() -> Iterator[tuple[str, str]]:
    """(where, first line) of the docstring of every function that isn't a property."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            told = ast.get_docstring(node)
            if told and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", told.splitlines()[0]


def begins_with_a_verb(summary: str) -> bool:
    """As far as the first word tells."""
    word = re.match(r"[A-Za-z]+", summary)
    return word is not None and word[0] not in NOT_VERBS


def test_the_summary_of_a_function_begins_with_a_verb():
    told = dict(summaries())
    assert len(told) > 900
    assert not {where: line for where, line in told.items() if not begins_with_a_verb(line)}


@pytest.mark.parametrize("summary", ["Of one run.", "The factors of a group.", "``[B]`` norms.", "Whether it is so.", "2 names."])
def test_twin_a_fragment_is_seen(summary):
    assert not begins_with_a_verb(summary) and begins_with_a_verb(f"Return {summary}")
