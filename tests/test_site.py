"""The site: built without a warning from the pages as they are; every public name is in it. Needs the extra ``docs``."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import groupclip

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INTEGRATIONS = ("transformers", "lightning", "opacus")
#: Torch's own classes, under Opacus's names.
OF_TORCH = {"DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention"}


def pages() -> set[str]:
    return {p.relative_to(DOCS).with_suffix("").as_posix() for p in DOCS.rglob("*.md") if not p.name.endswith(".in.md")}


def reference() -> set[str]:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\.\. auto(?:function|class|exception|module):: groupclip\.([\w.]+)$", text, re.M))


def test_every_public_name_is_in_the_reference() -> None:
    assert set(groupclip.__all__) <= reference()


@pytest.mark.parametrize("host", INTEGRATIONS)
def test_every_name_of_an_integration_is_in_the_reference(host: str) -> None:
    if host != "opacus":  # which isn't needed for its names
        pytest.importorskip(host)
    names = set(importlib.import_module(f"groupclip.integrations.{host}").__all__) - OF_TORCH
    assert {f"integrations.{host}.{name}" for name in names} <= reference()


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser", "lightning", "accelerate"):
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees", DOCS, tmp_path / "site"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in pages():
        assert (tmp_path / "site" / f"{page}.html").is_file()
        assert page == "index" or f'href="{page}.html"' in index
    told = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert all(f'id="groupclip.{name}"' in told for name in reference() - {"clipping"})
    assert "Raises" in told and "module-groupclip.clipping" in told


def test_twin_a_broken_link_is_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    (tmp_path / "conf.py").write_text('extensions = ["myst_parser"]\n', encoding="utf-8")
    (tmp_path / "index.md").write_text("# Page\n\n[gone](nowhere.md)\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", tmp_path, tmp_path / "site"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "nowhere" in done.stderr
