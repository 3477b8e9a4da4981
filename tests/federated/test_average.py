"""Rounds of clients: the sum is the loop's, noise and choice follow their laws, and every round is one event.

False-alarm rates: a standard deviation is estimated from 40,000 draws or more, so its relative standard error is 0.35 % and the
bound of 2 % lies 5.6 of them away: 2e-8 a figure. The two tests of the choice have 1e-6 each. Twins that are 5 % off, or choose a
fixed number, must be rejected by the same functions.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import math
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
import law
import oracle
from forking import in_fork
from groupclip.clipping.functions import Abadi
from groupclip.errors import BudgetExceeded, CoverageError, PrivacyViolation
from groupclip.federated import PrivateAverage
from groupclip.federated.updates import clipped_update
from groupclip.noise import grid
from groupclip.noise.grid import planned_for
from groupclip.statement.verified import differences

CLIENTS = [f"client {n}" for n in range(10)]
PLAN = gc.Mechanism(dataset_size=10, expected_batch_size=4, steps=6, noise_multiplier=1.2, unit="client")
ALL = dataclasses.replace(PLAN, expected_batch_size=10, sampling="full-batch")
SILENT = dataclasses.replace(ALL, noise_multiplier=0.0)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def update(of: nn.Module, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draw) * 2.0 ** (seed % 5 - 2) for name, p in of.named_parameters()}


def answered(average: PrivateAverage, of: nn.Module, chosen: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    sent = {client: update(of, CLIENTS.index(client)) for client in chosen}
    for client, value in sent.items():
        average.add(client, value)
    return sent


@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
@pytest.mark.parametrize("clip", sorted(oracle.CLIP))
def test_the_mean_is_the_loop_in_float64_over_the_expected_number(style: str, clip: str) -> None:
    plan = dataclasses.replace(PLAN, noise_multiplier=0.0)
    net = model()
    average = PrivateAverage(net, style, plan, clip=clip, thresholds=1.5)
    shapes = {name: p.shape for name, p in net.named_parameters()}
    for _ in range(4):
        sent = answered(average, net, average.choose(CLIENTS))
        found = average.release()
        exact = [{name: value.double() for name, value in one.items()} for one in sent.values()]
        judge = oracle.clipped(exact, shapes, dict(average.partition.groups), clip, dict(average.thresholds)).sums
        for name, value in found.items():
            assert value.dtype == torch.float32
            torch.testing.assert_close(value, (judge[name] / 4).float(), rtol=1e-6, atol=1e-12)


def stds_are(average: PrivateAverage, rounds: list[dict[str, Tensor]], means: dict[str, Tensor], stds: dict[str, float]) -> bool:
    """Whether the deviations of releases from their means have these standard deviations, by group, and mean zero."""
    for group in average.partition.names:
        away = torch.cat([(r[n].double() - means[n]).flatten() for r in rounds for n in average.partition[group]])
        assert away.numel() >= 40_000
        if abs(float(away.std()) / stds[group] - 1) > 0.02 or abs(float(away.mean())) > 5.6 * stds[group] / math.sqrt(away.numel()):
            return False
    return True


@pytest.mark.parametrize("allocation", ["equal", "threshold"])
def test_the_noise_has_its_law_and_is_drawn_once_a_round(allocation: str) -> None:
    net = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 201))
    thresholds = {"0": 1.0, "1": 3.0}
    average = PrivateAverage(net, "layer-wise", PLAN, thresholds=thresholds, allocation=allocation)
    rounds, means = [], []
    for _ in range(2):
        sent = answered(average, net, average.choose(CLIENTS))
        rounds.append(average.release())
        clipped = [clipped_update(value, average.partition, average.clip, thresholds) for value in sent.values()]
        means.append({n: sum((one[n] for one in clipped), torch.zeros(p.shape)) / 4 for n, p in net.named_parameters()})
    left = [{n: r[n].double() - m[n] for n in r} for r, m in zip(rounds, means, strict=True)]
    zero = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in net.named_parameters()}
    sigma = planned_for(1.2, sum(p.numel() for p in net.parameters()))
    stds = {
        "equal": dict.fromkeys(thresholds, sigma * math.sqrt(1.0**2 + 3.0**2) / 4),
        "threshold": {group: sigma * math.sqrt(2) * bound / 4 for group, bound in thresholds.items()},
    }[allocation]
    assert stds_are(average, left, zero, stds)
    for off in (0.95, 1.05):
        assert not stds_are(average, [{n: v * off for n, v in one.items()} for one in left], zero, stds)
    # of two rounds, it is two noises
    together = torch.stack([torch.cat([v.flatten() for v in one.values()]) for one in left])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 5.6 / math.sqrt(together.shape[1])


def test_the_noise_lies_on_a_grid() -> None:
    average = PrivateAverage(nn.Linear(20, 20).double(), "all-layer", ALL)
    average.choose(CLIENTS)
    found = average.release()
    unit = grid.grid(average.record(delta=1e-3).noise_std["all"])
    steps = torch.cat([v.flatten() for v in found.values()]) * 10 / unit
    assert float((steps - steps.round()).abs().max()) < 1e-3 and float(steps.abs().max()) > 1e4
    assert average.record(delta=1e-3).rounding > 0


def test_an_empty_round_is_noise_and_counts() -> None:
    average = PrivateAverage(model(), "all-layer", PLAN)
    average.choose([])
    found = average.release()
    assert all(value.abs().min() > 0 for value in found.values()) and average.ledger.steps == 1


def chosen_often(choose, rounds: int, number: int) -> np.ndarray:
    seen = np.zeros((rounds, number), dtype=int)
    for row in seen:
        row[choose()] = 1
    return seen


def test_clients_are_chosen_by_poissons_law() -> None:
    rounds, number, rate = 1_500, 60, 0.25
    plan = gc.Mechanism(dataset_size=number, expected_batch_size=rate * number, steps=rounds, noise_multiplier=1.0, unit="client")
    average = PrivateAverage(nn.Linear(1, 1), "all-layer", plan)

    def once() -> list[int]:
        chosen = average.choose(range(number))
        average.release()
        return chosen

    assert min(law.p_values(chosen_often(once, rounds, number), rate)) > law.ALPHA
    draw = np.random.default_rng(0)
    twins = {
        "a fixed number": lambda: draw.choice(number, int(rate * number), replace=False),
        "some more often": lambda: np.flatnonzero(draw.random(number) < np.linspace(0.2, 0.3, number)),
        "the same for four rounds": lambda: np.flatnonzero(np.random.default_rng(next(turn) // 4).random(number) < rate),
    }
    turn = iter(range(rounds))
    rejected = {name: min(law.p_values(chosen_often(twin, rounds, number), rate)) < law.ALPHA for name, twin in twins.items()}
    assert rejected == dict.fromkeys(twins, True)


def test_fewer_clients_are_chosen_at_the_same_rate() -> None:
    plan = dataclasses.replace(PLAN, steps=1_000)
    average, sizes = PrivateAverage(nn.Linear(1, 1), "all-layer", plan), []
    for _ in range(1_000):
        sizes.append(len(average.choose(CLIENTS[:5])))
        average.release()
    assert abs(np.mean(sizes) - 2.0) < 5.6 * math.sqrt(5 * 0.24 / 1_000)  # 2e-8


def test_each_client_adds_once_and_only_if_it_was_chosen() -> None:
    net = model()
    average = PrivateAverage(net, "all-layer", PLAN)
    with pytest.raises(PrivacyViolation, match="wasn't chosen"):
        average.add("client 0", update(net, 0))
    chosen: list[str] = []
    while not 0 < len(chosen) < 10:
        chosen = average.choose(CLIENTS)
        if not 0 < len(chosen) < 10:
            average.release()
    other = next(client for client in CLIENTS if client not in chosen)
    average.add(chosen[0], update(net, 0))
    before = {name: value.clone() for name, value in average._sums.items()}
    for client in (other, chosen[0], "stranger"):
        with pytest.raises(PrivacyViolation, match="wasn't chosen in this round, or has answered already"):
            average.add(client, update(net, 1))
    assert all(torch.equal(value, before[name]) for name, value in average._sums.items())
    average.release()
    with pytest.raises(PrivacyViolation, match="wasn't chosen"):
        average.add(chosen[0], update(net, 0))


class Waiting(Abadi):
    """Clips as it does, when all who clip have begun and may go on."""

    def __init__(self, threads: int) -> None:
        self.begun, self.go_on = threading.Barrier(threads + 1), threading.Event()

    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        if not self.go_on.is_set():
            self.begun.wait(60)
            assert self.go_on.wait(60)
        return super().factors(norms, threshold)


def adding(average: PrivateAverage, sent: dict[str, Tensor], refused: list[str]) -> threading.Thread:
    def add() -> None:
        try:
            average.add("client 0", sent)
        except PrivacyViolation as error:
            refused.append(str(error))

    thread = threading.Thread(target=add)
    thread.start()
    return thread


def test_a_client_that_answers_in_several_threads_at_once_adds_once() -> None:
    net, clip, refused = model(), Waiting(4), []
    average = PrivateAverage(net, "all-layer", SILENT, clip=clip)
    average.choose(CLIENTS)
    threads = [adding(average, update(net, 0), refused) for _ in range(4)]
    clip.begun.wait(60)  # all four are past the first look at who has answered
    clip.go_on.set()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and all("has answered already" in text for text in refused)
    assert math.sqrt(sum(float(value.square().sum()) for value in average._sums.values())) <= 1 + 1e-12


def test_an_answer_that_is_clipped_while_its_round_ends_is_refused() -> None:
    net, clip, refused = model(), Waiting(1), []
    average = PrivateAverage(net, "all-layer", SILENT, clip=clip)
    average.choose(CLIENTS)
    thread = adding(average, update(net, 0), refused)
    clip.begun.wait(60)
    assert not any(value.any() for value in average.release().values())
    average.choose(CLIENTS)
    clip.go_on.set()
    thread.join()
    assert len(refused) == 1 and not any(value.any() for value in average._sums.values())
    average.add("client 0", update(net, 0))  # in the round that it was chosen for


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("act", ["choose", "add", "release"])
def test_a_copy_by_fork_is_refused(act: str) -> None:
    net = model()
    average = PrivateAverage(net, "all-layer", ALL)
    if act != "choose":
        average.choose(CLIENTS)
    do = {
        "choose": lambda: average.choose(CLIENTS),
        "add": lambda: average.add("client 0", update(net, 0)),
        "release": average.release,
    }

    def told() -> str:
        with pytest.raises(PrivacyViolation, match="was made in another process"):
            do[act]()
        return "refused"

    assert in_fork(told) == "refused"
    do[act]()


def test_choice_is_not_repeated_and_no_round_is_past_the_plan() -> None:
    average = PrivateAverage(model(), "all-layer", dataclasses.replace(PLAN, steps=2))
    with pytest.raises(PrivacyViolation, match="no round is under way"):
        average.release()
    for _ in range(2):
        average.choose(CLIENTS)
        with pytest.raises(PrivacyViolation, match="another reason than chance"):
            average.choose(CLIENTS)
        average.release()
    with pytest.raises(BudgetExceeded):
        average.choose(CLIENTS)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda u: u.pop("0.bias"), ValueError, r"missing \['0.bias'\]"),
        (lambda u: u.update(more=torch.zeros(1)), ValueError, r"unknown \['more'\]"),
        (lambda u: u.update({"0.bias": torch.zeros(5, 1)}), ValueError, r"the shape \(5, 1\) at '0.bias'"),
        (lambda u: u.update({"0.bias": torch.zeros(5, dtype=torch.int64)}), TypeError, "no dense float tensor at '0.bias'"),
        (lambda u: u.update({"0.bias": np.zeros(5)}), TypeError, "no dense float tensor"),
        (lambda u: u.update({"0.bias": torch.zeros(5).to_sparse()}), TypeError, "no dense float tensor"),
        (lambda u: u.update({"0.bias": torch.zeros(5, device="meta")}), TypeError, "without values"),
    ],
)
def test_an_update_of_another_model_is_refused_and_adds_nothing(change, error, message) -> None:
    net = model()
    average = PrivateAverage(net, "all-layer", ALL)
    average.choose(CLIENTS)
    sent = update(net, 0)
    change(sent)
    with pytest.raises(error, match=message):
        average.add("client 0", sent)
    assert not any(value.any() for value in average._sums.values())
    average.add("client 0", update(net, 0))  # it may answer again


def test_epsilon_is_the_plans_and_the_statement_is_about_clients() -> None:
    net = model()
    average = PrivateAverage(net, "layer-wise", PLAN)
    assert average.epsilon(delta=1e-3) == 0
    for step in range(1, 4):
        answered(average, net, average.choose(CLIENTS))
        average.release()
        assert average.epsilon(delta=1e-3) == PLAN.epsilon(delta=1e-3, steps=step)
    record = average.record(delta=1e-3)
    assert differences(record.to_dict()) == []
    assert record.to_dict()["unit_of_privacy"].startswith("one client of the federation")
    assert record.to_dict()["mechanism"] == "Poisson-sampled Gaussian (DP-FedAvg with group-wise clipping)"
    told = average.statement(delta=1e-3)
    assert "The guarantee is about one client" in told and "the update of every client was clipped (abadi)" in told
    assert "the server itself sees every update" in told and "gradient of every" not in told
    with pytest.raises(PrivacyViolation):
        PrivateAverage(net, "layer-wise", SILENT).epsilon(delta=1e-3)


def test_a_server_that_restarts_goes_on_with_its_rounds(tmp_path: Path) -> None:
    net, path = model(), tmp_path / "clients.budget"
    gc.Budget(path, epsilon=20.0, delta=1e-3, unit="client")
    for step in range(1, 4):  # each by a new object, as in a new process
        average = PrivateAverage(net, "all-layer", PLAN, budget=gc.Budget(path).go_on(PLAN, label="rounds"))
        average.choose(CLIENTS)
        average.release()
        assert average.ledger.steps == step == gc.Budget(path).spent().steps
    assert average.epsilon(delta=1e-3) == gc.Budget(path).spent().epsilon == PLAN.epsilon(delta=1e-3, steps=3)
    held = average.record(delta=1e-3).budget
    assert held is not None and (held.epsilon, held.entries) == (gc.Budget(path).spent().epsilon, 1)
    with pytest.raises(PrivacyViolation, match=r"has another plan: noise_multiplier is 1\.2, and not 1\.1"):
        gc.Budget(path).go_on(dataclasses.replace(PLAN, noise_multiplier=1.1), label="rounds")


def test_a_round_that_cannot_be_charged_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    budget = gc.Budget(tmp_path / "b", epsilon=20.0, delta=1e-3, unit="client")
    average = PrivateAverage(net, "all-layer", ALL, budget=budget)
    average.choose(CLIENTS)
    answered(average, net, CLIENTS[:3])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("groupclip.durable.os.write", full)
        with pytest.raises(OSError, match="No space"):
            average.release()
    assert average.ledger.steps == 0 == budget.spent().steps
    average.release()
    assert average.ledger.steps == 1 == budget.spent().steps


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"unit": "sample"}, ValueError, "unit='sample', and a round is of clients"),
        ({"noise_multiplier": None}, ValueError, "no noise_multiplier yet"),
        ({"sampling": "truncated-poisson", "adjacency": "zero-out"}, ValueError, "clients are chosen one by one"),
        ({"bands": 2, "adjacency": "zero-out"}, ValueError, "rounds of clients have independent noise"),
    ],
)
def test_plans_that_are_not_of_clients_are_refused(changed, error, message) -> None:
    with pytest.raises(error, match=message):
        PrivateAverage(model(), "all-layer", dataclasses.replace(PLAN, **changed))


def test_what_does_not_fit_is_refused() -> None:
    average = PrivateAverage(model(), "all-layer", PLAN)
    with pytest.raises(ValueError, match="listed twice"):
        average.choose(["a", "a"])
    with pytest.raises(ValueError, match="there are 11 clients, the mechanism was planned for 10"):
        average.choose([*CLIENTS, "one more"])
    with pytest.raises(CoverageError):
        PrivateAverage(model(), gc.partition(nn.Linear(2, 2), "all-layer"), PLAN)
    with pytest.raises(TypeError, match="can't be copied"):
        copy.deepcopy(average)
    with pytest.raises(TypeError, match=r"must be a groupclip\.Mechanism"):
        PrivateAverage(model(), "all-layer", None)


def test_engines_and_batches_refuse_plans_of_clients() -> None:
    net = model()
    with pytest.raises(ValueError, match="an engine clips the gradients of samples or users"):
        gc.attach(net, torch.optim.SGD(net.parameters(), lr=0.1), "all-layer", PLAN)
    with pytest.raises(ValueError, match="clients are chosen by groupclip"):
        gc.logical_batches(list(range(10)), PLAN)


def test_frozen_parameters_take_no_part() -> None:
    net = model()
    net[0].requires_grad_(False)
    average = PrivateAverage(net, "all-layer", ALL)
    average.choose(CLIENTS)
    with pytest.raises(ValueError, match="unknown"):
        average.add("client 0", update(net, 0))
    average.add("client 0", {name: value for name, value in update(net, 0).items() if name.startswith("2")})
    assert set(average.release()) == {"2.weight", "2.bias"}
