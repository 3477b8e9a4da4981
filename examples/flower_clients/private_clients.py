"""A Flower app whose clients train privately on their own samples: nobody has to trust the server.

    flwr run examples/flower_clients SUPERLINK --stream      # docs/federated.md tells the rest

Flower carries weights and averages them. groupclip clips, adds noise, draws batches and keeps each client's ledger, in a file that
the client holds. A client attaches anew in every round, so one that restarts loses nothing: epsilon after R rounds of T steps is
that of one run of R x T steps. A server that asks for another noise multiplier half-way is refused by the client.
Needs: pip install -e ".[cli,flower]"
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import groupclip as gc

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
    """Take one round's steps on this client's samples."""
    asked, own, usual = message.content["config"], context.node_config, context.run_config
    part = int(own["partition-id"])
    data = digits(part, int(own["num-partitions"]))
    steps = int(asked["steps-a-round"])
    plan = gc.Mechanism(
        dataset_size=len(data),
        expected_batch_size=min(int(asked["batch-size"]), len(data)),
        steps=int(asked["rounds"]) * steps,
        noise_multiplier=float(asked["noise-multiplier"]),
    )
    # of this client alone, beside its data; a simulation's node has no settings of its own
    folder = Path(str(own.get("folder", f"{usual['out']}/client-{part}")))
    folder.mkdir(parents=True, exist_ok=True)
    delta = gc.default_delta(len(data))
    # what this client is willing to spend, whatever the server asks for
    budget = gc.Budget(folder / "samples.budget", epsilon=float(own.get("epsilon", usual["epsilon"])), delta=delta)

    model = new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(asked["lr"]))
    engine = gc.attach(model, optimizer, "layer-wise", plan, budget=budget.go_on(plan, label=str(asked["training"])))
    engine.ledger.check()  # refuses a round past the plan
    batches = gc.poisson_batches(data, plan, microbatch=128, start=engine.ledger.steps)
    for batch in itertools.islice(batches, steps):
        for inputs, labels in batch:
            engine.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()

    if engine.ledger.steps == plan.steps:
        record = engine.record(delta=delta).to_dict()
        (folder / "privacy.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    # public facts of the plan, and no statistic of the samples: a loss would have no noise
    told = MetricRecord({"num-examples": len(data), "steps": engine.ledger.steps, "epsilon": budget.spent().epsilon})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    config = context.run_config
    names = ("training", "rounds", "steps-a-round", "batch-size", "noise-multiplier", "lr")
    asked = ConfigRecord({name: config[name] for name in names})
    clients = int(config["clients"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    result = strategy.start(
        grid, ArrayRecord(new_model().state_dict()), num_rounds=int(config["rounds"]), train_config=asked
    )
    if not result.arrays:
        raise RuntimeError("no client took part in any round; each says why in its log")
    model = new_model()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    inputs, labels = digits(0, 0)[:]
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).float().mean()
    print(f"accuracy {100 * right:.1f} % on 360 held-out digits")
    out = Path(str(config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "weights.pt")
