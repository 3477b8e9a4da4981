"""The two Flower apps run with three simulated clients, through Flower's own apps, strategies and messages, in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import groupclip as gc
from groupclip.statement.verified import differences

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Flower's own dependencies
    pytest.importorskip("flwr", reason="Flower isn't installed: pip install -e '.[flower]'")
    from flower_grid import LocalGrid, server_context

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXAMPLES = Path(__file__).parent.parent / "examples"
EACH = 479  # samples of each of three clients


def app(folder: str, name: str) -> tuple[ModuleType, dict[str, Any]]:
    """The app's module, afresh as in a new process, and its settings."""
    spec = importlib.util.spec_from_file_location(f"flower_app_{name}", EXAMPLES / folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text(encoding="utf-8"))
    components = settings["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": f"{name}:server_app", "clientapp": f"{name}:client_app"}
    return module, settings["tool"]["flwr"]["app"]["config"]


def nodes(tmp_path: Path, epsilon: float = 20.0) -> dict[int, dict[str, str | int | float]]:
    return {
        100 + n: {"partition-id": n, "num-partitions": 3, "folder": str(tmp_path / f"client-{n}"), "epsilon": epsilon}
        for n in range(3)
    }


def plan_of(config: dict[str, Any]) -> gc.Mechanism:
    return gc.Mechanism(
        dataset_size=EACH, expected_batch_size=config["batch-size"], steps=config["rounds"] * config["steps-a-round"],
        noise_multiplier=config["noise-multiplier"],
    )  # fmt: skip


def test_clients_that_train_privately_spend_what_one_long_run_spends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, config = app("flower_clients", "private_clients")
    config["out"] = str(tmp_path / "out")
    # each message meets an app that knows nothing of the rounds before, as after a restart
    grid = LocalGrid(lambda: app("flower_clients", "private_clients")[0].client_app, nodes(tmp_path), config)
    module.server_app(grid, server_context(config))
    assert not [reply for reply in grid.told if reply.has_error()] and len(grid.told) == 3 * config["rounds"]
    plan, delta = plan_of(config), gc.default_delta(EACH)
    for n in range(3):
        budget = gc.Budget(tmp_path / f"client-{n}" / "samples.budget")
        assert budget.spent().epsilon == pytest.approx(plan.epsilon(delta=delta), rel=1e-9)
        record = json.loads((tmp_path / f"client-{n}" / "privacy.json").read_text())
        assert record["epsilon"] == pytest.approx(plan.epsilon(delta=delta), rel=1e-9)
        assert record["steps_taken"] == plan.steps and record["sampling_used"] == {"groupclip": plan.steps, "user": 0}
        assert record["earlier_trainings"] == [] and differences(record) == []
    told = [reply.content["metrics"] for reply in grid.told[::3]]
    lengths = [k * config["steps-a-round"] for k in range(1, config["rounds"] + 1)]
    rounds = [dataclasses.replace(plan, steps=steps).epsilon(delta=delta) for steps in lengths]  # each one run
    assert [metrics["epsilon"] for metrics in told] == pytest.approx(rounds, rel=1e-9)
    assert set(told[0]) == {"num-examples", "steps", "epsilon"}
    accuracy = float(capsys.readouterr().out.split("accuracy ")[1].split(" %")[0])
    assert accuracy > 40  # 10 % by guessing; seen: over 80 %


def test_a_client_of_a_simulation_takes_its_settings_from_the_run(tmp_path: Path) -> None:
    module, config = app("flower_clients", "private_clients")
    config |= {"out": str(tmp_path / "out"), "rounds": 1, "steps-a-round": 2}
    bare = {100 + n: {"partition-id": n, "num-partitions": 3} for n in range(3)}
    grid = LocalGrid(lambda: module.client_app, bare, config)
    module.server_app(grid, server_context(config))
    budgets = [gc.Budget(tmp_path / "out" / f"client-{n}" / "samples.budget") for n in range(3)]
    assert [(budget.epsilon, budget.spent().steps) for budget in budgets] == [(config["epsilon"], 2)] * 3


def test_a_client_refuses_another_noise_multiplier_and_what_it_did_not_set_aside(tmp_path: Path) -> None:
    module, config = app("flower_clients", "private_clients")
    config |= {"out": str(tmp_path / "out"), "rounds": 2, "steps-a-round": 3}
    grid = LocalGrid(lambda: module.client_app, nodes(tmp_path, epsilon=1.4), config)
    module.server_app(grid, server_context(config))
    spent = [gc.Budget(tmp_path / f"client-{n}" / "samples.budget").spent() for n in range(3)]
    assert {figure.steps for figure in spent} == {6}
    grid.told.clear()
    cases = {
        "PrivacyViolation: the training 'digits-1'": {"noise-multiplier": 1.9},
        "BudgetExceeded: all 6 planned steps": {},  # the rounds once more
        f"BudgetExceeded: {tmp_path}": {"training": "digits-2", "rounds": 50},
    }
    for reason, changed in cases.items():
        with pytest.raises(RuntimeError, match="no client took part"):
            module.server_app(grid, server_context({**config, **changed}))
        assert grid.told and all(reply.has_error() and reply.error.reason.startswith(reason) for reply in grid.told), reason
        grid.told.clear()
    assert [gc.Budget(tmp_path / f"client-{n}" / "samples.budget").spent() for n in range(3)] == spent


def test_the_server_averages_privately_over_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, config = app("flower_average", "private_average")
    config |= {"out": str(tmp_path / "out"), "clients": 3, "clients-a-round": 2, "rounds": 6, "noise-multiplier": 2.0}
    grid = LocalGrid(lambda: module.client_app, nodes(tmp_path), config)
    torch.manual_seed(0)
    module.server_app(grid, server_context(config))
    plan = gc.Mechanism(dataset_size=3, expected_batch_size=2, steps=6, noise_multiplier=2.0, unit="client")
    delta = gc.default_delta(3)
    record = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert record["epsilon"] == plan.epsilon(delta=delta) == gc.Budget(tmp_path / "out" / "clients.budget").spent().epsilon
    assert record["unit_of_privacy"].startswith("one client") and record["steps_taken"] == 6 and differences(record) == []
    assert record["hardened_against_floating_point_attacks"]
    assert all(set(asked) <= set(grid.nodes) for asked in grid.asked)
    assert "The guarantee is about one client" in capsys.readouterr().out


def test_a_server_that_restarts_goes_on_and_lost_clients_add_nothing(tmp_path: Path) -> None:
    module, config = app("flower_average", "private_average")
    config |= {"out": str(tmp_path / "out"), "clients": 3, "clients-a-round": 2, "rounds": 4, "noise-multiplier": 2.0}

    class Stopped(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            if len(self.asked) == 4:  # two rounds of training and of evaluation
                raise KeyboardInterrupt
            return super().send_and_receive(messages, timeout=timeout)

    grid = Stopped(lambda: module.client_app, nodes(tmp_path), config, lost=[101])
    with pytest.raises(KeyboardInterrupt):
        module.server_app(grid, server_context(config))
    path = tmp_path / "out" / "clients.budget"
    assert gc.Budget(path).spent().steps == 2
    before = torch.load(tmp_path / "out" / "weights.pt", weights_only=True)
    again = app("flower_average", "private_average")[0]
    sent: list[dict[str, torch.Tensor]] = []

    class Watched(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            sent.extend(m.content["arrays"].to_torch_state_dict() for m in messages)
            return super().send_and_receive(messages, timeout=timeout)

    later = Watched(lambda: again.client_app, nodes(tmp_path), config)
    again.server_app(later, server_context(config))
    assert len(later.asked) == 4 and gc.Budget(path).spent().steps == 4
    if sent and later.asked[0]:
        assert all(torch.equal(value, before[name]) for name, value in sent[0].items())
    plan = gc.Mechanism(dataset_size=3, expected_batch_size=2, steps=4, noise_multiplier=2.0, unit="client")
    assert gc.Budget(path).spent().epsilon == plan.epsilon(delta=gc.default_delta(3))
    other = dataclasses.replace(plan, noise_multiplier=1.5)
    with pytest.raises(gc.PrivacyViolation, match="has another plan"):
        again.server_app(later, server_context(config | {"noise-multiplier": other.noise_multiplier}))


def test_a_server_that_is_killed_in_the_first_round_goes_on_and_one_that_has_ended_says_so_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, config = app("flower_average", "private_average")
    config |= {"out": str(tmp_path / "out"), "clients": 3, "clients-a-round": 2, "rounds": 3, "noise-multiplier": 2.0}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as disk, pytest.raises(KeyboardInterrupt):
        disk.setattr(torch, "save", killed)  # charged, and not yet kept
        module.server_app(LocalGrid(lambda: module.client_app, nodes(tmp_path), config), server_context(config))
    path, told = tmp_path / "out" / "clients.budget", []
    assert gc.Budget(path).spent().steps == 1 and not (tmp_path / "out" / "weights.pt").exists()
    for _ in range(2):  # the second one has no round left
        again = app("flower_average", "private_average")[0]
        again.server_app(LocalGrid(lambda app=again: app.client_app, nodes(tmp_path), config), server_context(config))
        assert gc.Budget(path).spent().steps == 3
        told.append((json.loads((tmp_path / "out" / "privacy.json").read_text())["epsilon"], capsys.readouterr().out))
    assert told[0] == told[1] and "accuracy" in told[0][1]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def running(folder: Path, name: str, *command: str, environment: dict[str, str]) -> Iterator[None]:
    """A process of Flower's, with its log in a file, until the end."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["private_clients", "private_average"])
def test_three_supernodes_and_a_superlink(tmp_path: Path, name: str) -> None:
    """Flower's own processes: each message is answered by a process that begins anew. Two to three minutes."""
    folder = EXAMPLES / f"flower_{name.removeprefix('private_')}"
    commands = Path(sys.executable).parent
    source = Path(gc.__file__).parents[1]
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(source), "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    port = free_port()
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    config = {"rounds": 2, "clients": 3, "out": str(tmp_path / "out")}
    config |= {"steps-a-round": 3} if name == "private_clients" else {"clients-a-round": 2, "noise-multiplier": 2.0}
    given = " ".join(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in config.items())
    link = [str(commands / "flower-superlink"), "--insecure", "--disable-runtime-dependency-installation", "--port", str(port)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(tmp_path, "superlink", *link, environment=environment))
        time.sleep(5)
        for n, own in enumerate(nodes(tmp_path).values()):
            told = " ".join(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in own.items())
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
            command = [str(commands / node[0]), *node[1:], "--node-config", told]
            stack.enter_context(running(tmp_path, f"node-{n}", *command, environment=environment))
        run = [str(commands / "flwr"), "run", str(folder), "here", "--stream", "--run-config", given]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=900)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0 and "accuracy " in done.stdout, f"{done.stdout}\n{done.stderr}\n{logs}"
    if name == "private_clients":
        plan = gc.Mechanism(dataset_size=EACH, expected_batch_size=64, steps=6, noise_multiplier=2.0)
        for n in range(3):
            spent = gc.Budget(tmp_path / f"client-{n}" / "samples.budget").spent()
            assert spent.epsilon == pytest.approx(plan.epsilon(delta=spent.delta), rel=1e-9)
    else:
        record = json.loads((tmp_path / "out" / "privacy.json").read_text())
        assert record["steps_taken"] == 2 and differences(record) == []
