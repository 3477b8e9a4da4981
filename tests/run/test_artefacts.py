"""What a run leaves: two artefacts kept apart, tensors in safetensors, the rest in JSON, nothing that runs code when read."""

from __future__ import annotations

import ast
import json
import re
import stat
from pathlib import Path

import pytest
from safetensors import safe_open

import groupclip
from groupclip.privacy.mechanism import Mechanism
from groupclip.run import RunInterrupted, resume, start
from small_runs import REQUEST, SELDOM, STEPS, StopAfter

SOURCES = sorted(Path(groupclip.__file__).parent.rglob("*.py"))
#: Modules and calls that run code from a file, or reach over a network.
FORBIDDEN = {
    "pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "urllib", "http", "socket", "requests",
    "ftplib", "torch.load", "torch.save", "torch.hub", "yaml.load", "yaml.unsafe_load", "eval", "exec", "os.system",
}  # fmt: skip


def forbidden(source: str) -> list[str]:
    """What of FORBIDDEN a source uses."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [name.name.split(".")[0] for name in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module.split(".")[0], *(f"{module}.{name.name}" for name in node.names)]
            case ast.Call(func=ast.Name(id=name)):
                names = [name]
            case ast.Attribute(value=ast.Name(id=of), attr=name):
                names = [f"{of}.{name}"]
            case ast.Call(keywords=keywords):
                names = [k.arg or "" for k in keywords if k.arg == "allow_pickle" and ast.unparse(k.value) == "True"]
        found += [name for name in names if name in FORBIDDEN or name == "allow_pickle"]
    return found


# whether an error would survive the way from a worker is tried out in memory: on what this process made, from no file
IN_MEMORY = {"sampling/workers.py": ["pickle"]}
# Opacus's save_checkpoint and load_checkpoint have the user's own entries; what is read is tensors and plain containers
RESTRICTED = {"integrations/opacus/privacy_engine.py": ["torch.save", "torch.load"]}


def test_nothing_is_unpickled_evaluated_or_fetched() -> None:
    named = {path.relative_to(Path(groupclip.__file__).parent).as_posix(): path for path in SOURCES}
    found = {name: forbidden(path.read_text(encoding="utf-8")) for name, path in named.items()}
    assert found == {name: [] for name in named} | IN_MEMORY | RESTRICTED
    (engine,) = (path for name, path in named.items() if name in RESTRICTED)
    loads = [node for node in ast.walk(ast.parse(engine.read_text(encoding="utf-8")))
             if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]  # fmt: skip
    assert loads and all("weights_only=True" in ast.unparse(load) for load in loads)
    (workers,) = (path for name, path in named.items() if name in IN_MEMORY)
    assert not re.search(r"\bopen\(|read_bytes|pickle\.load\(", workers.read_text(encoding="utf-8"))
    assert len(SOURCES) > 100


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "torch.load(f)", "eval('1')", "import urllib.request", "yaml.load(f)",
     "from torch import load", "np.load(f, allow_pickle=True)"],
)  # fmt: skip
def test_twin_it_would_be_seen(source: str) -> None:
    assert forbidden(source)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artefacts") / "run"
    with pytest.raises(RunInterrupted):
        start(REQUEST, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    return out


def readable_as_data(path: Path) -> bool:
    match path.suffix:
        case ".safetensors":
            with safe_open(path, framework="pt") as file:
                return len(list(file.keys())) > 0
        case ".json":
            return bool(json.loads(path.read_text(encoding="utf-8")))
        case ".jsonl":
            return all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return path.name == "README.md"


def test_the_secret_part_is_its_owners_and_the_release_comes_at_the_end(stopped: Path) -> None:
    assert not (stopped / "release").exists()
    assert {p.name for p in (stopped / "resume").iterdir()} == {"checkpoint.safetensors", "ledger.jsonl"}
    for path in (stopped / "resume", *(stopped / "resume").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert all(readable_as_data(path) for path in (stopped / "resume").iterdir())


def test_no_key_and_no_state_of_a_generator_is_in_a_checkpoint(stopped: Path) -> None:
    """A leaked key takes all privacy away: there is none to leak."""
    with safe_open(stopped / "resume" / "checkpoint.safetensors", framework="pt") as file:
        names, facts = list(file.keys()), json.loads(file.metadata()["groupclip"])
    assert all(name.startswith(("model.", "optimizer.")) for name in names)
    assert set(facts) == {"format", "config", "engine", "optimizer", "progress"}
    assert set(facts["engine"]) == {"ledger", "thresholds", "partition", "clip", "unsafe", "noise", "earlier", "training", "views"}
    assert facts["engine"]["earlier"] == []  # else plans and numbers of steps
    plan = Mechanism.from_dict(facts["engine"]["ledger"]["mechanism"])
    assert facts["engine"]["ledger"]["plan_hash"] == plan.plan_hash


def test_release_and_resume_share_no_file(stopped: Path) -> None:
    outcome = resume(stopped).train(keep_resume=True)
    release = {p.name for p in outcome.release.iterdir()}
    assert release == {"model.safetensors", "privacy.json", "README.md", "config.json"}
    assert release.isdisjoint(p.name for p in (stopped / "resume").iterdir())
    assert all(readable_as_data(path) for path in outcome.release.iterdir())
    with safe_open(outcome.release / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert not any(name.startswith("optimizer") for name in file.keys())  # noqa: SIM118 (not a dict)
    facts = json.loads((outcome.release / "privacy.json").read_text(encoding="utf-8"))
    assert (facts["steps_taken"], facts["private"]) == (STEPS, True)
    card = (outcome.release / "README.md").read_text(encoding="utf-8")
    assert facts["plan_hash"] in card
    assert f"\n- training samples: {facts['dataset_size']:,}\n" in card and facts["dataset_size"] > 1_000


def test_groups_with_different_noise_have_a_report(tmp_path: Path) -> None:
    outcome = start({**REQUEST, "model": "mlp", "steps": 2, "allocation": "dimension"}, tmp_path / "run").train()
    groups = json.loads((outcome.release / "privacy.json").read_text(encoding="utf-8"))["groups"]
    assert len({group["noise_std"] for group in groups}) > 1
    report = outcome.report.read_text(encoding="utf-8")
    assert all(f"<td>{group['noise_std']:.6g}</td>" in report for group in groups)
