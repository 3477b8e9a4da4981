"""A Flower app with DP-FedAvg on the server: what is published tells little of any one client.

    flwr run examples/flower_average SUPERLINK --stream      # docs/federated.md tells the rest

Clients train as they like and send what changed. The server, which is trusted, has groupclip choose who takes part, clip each
update by group, add the noise once, and count the round. Flower does the rest.
Needs: pip install -e ".[cli,flower]"
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import groupclip as gc
from groupclip.federated import PrivateAverage

client_app = ClientApp()
server_app = ServerApp()


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def digits(part: int, parts: int) -> TensorDataset:
    """Return one client's own samples, or with ``parts=0`` the 360 held-out ones."""
    pixels, labels = (torch.as_tensor(found) for found in load_digits(return_X_y=True))
    rows = torch.arange(360) if parts == 0 else torch.arange(360 + part, len(labels), parts)
    return TensorDataset(pixels[rows].float() / 16, labels[rows].long())


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train without privacy, and send what changed: to the server alone, which is trusted with it."""
    own = context.node_config
    model = new_model()
    sent = message.content["arrays"].to_torch_state_dict()
    model.load_state_dict(sent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(digits(int(own["partition-id"]), int(own["num-partitions"])), batch_size=16, shuffle=True)
    for inputs, labels in loader:
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    update = {name: value - sent[name] for name, value in model.state_dict().items()}
    return Message(RecordDict({"update": ArrayRecord(update)}), reply_to=message)


class PrivateFedAvg(FedAvg):
    """Flower's federated averaging, with the choice of clients and the mean of their updates by groupclip."""

    def __init__(self, average: PrivateAverage, out: Path, server_lr: float) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.average, self.out, self.server_lr = average, out, server_lr
        self.weights: dict[str, torch.Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.weights = arrays.to_torch_state_dict()
        chosen = self.average.choose(sorted(grid.get_node_ids()))  # may be nobody: that is a round too
        return self._construct_messages(RecordDict({"arrays": arrays, "config": config}), chosen, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        # what clients tell beside their updates (a loss, a number of samples) has no noise, so nothing of it is used
        for reply in replies:
            if not reply.has_error():  # who fails adds zero
                self.average.add(reply.metadata.src_node_id, reply.content["update"].to_torch_state_dict())
        for name, change in self.average.release().items():
            self.weights[name] = self.weights[name] + self.server_lr * change
        torch.save(self.weights, self.out / "weights.new")
        (self.out / "weights.new").replace(self.out / "weights.pt")  # whole or not at all, whenever it is killed
        return ArrayRecord(self.weights), None


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = int(config["clients"])
    plan = gc.Mechanism(
        dataset_size=clients,
        expected_batch_size=float(config["clients-a-round"]),
        steps=int(config["rounds"]),
        noise_multiplier=float(config["noise-multiplier"]),
        unit="client",
    )
    delta = gc.default_delta(clients)
    out = Path(str(config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    # rounds that were released stay counted: a server that restarts goes on with the rest of them
    budget = gc.Budget(out / "clients.budget", epsilon=float(config["epsilon"]), delta=delta, unit="client")
    model = new_model()
    average = PrivateAverage(
        model, "layer-wise", plan, thresholds=float(config["threshold"]), budget=budget.go_on(plan, label="rounds")
    )
    weights = out / "weights.pt"
    if weights.exists():  # not if it was killed in the first round, which stays counted
        model.load_state_dict(torch.load(weights, weights_only=True))
    while len(list(grid.get_node_ids())) < clients:  # once: later on, who can't be reached adds zero
        time.sleep(1)
    left = plan.steps - average.ledger.steps
    strategy = PrivateFedAvg(average, out, float(config["server-lr"]))
    if left:
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=left)
        model.load_state_dict(strategy.weights)

    inputs, labels = digits(0, 0)[:]
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).float().mean()
    print(f"accuracy {100 * right:.1f} % on 360 held-out digits")
    print(average.statement(delta=delta))
    (out / "privacy.json").write_text(json.dumps(average.record(delta=delta).to_dict(), indent=2), encoding="utf-8")
