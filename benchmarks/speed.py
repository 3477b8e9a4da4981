"""Whole steps of models as people train them, private and plain and under Opacus; and how their cost grows.

    python benchmarks/speed.py --json docs/speed.json
    python benchmarks/speed_page.py

All ways take turns in one run; a ratio is to the plain step of its own round. Needs opacus, transformers and peft. It takes
some twenty minutes on two cores. ``--only vit`` and the like measure one model, and write it beside what the file has.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from performance import SEED, compared, flops, python_calls, refusal, timed
from shapes import gpt2, ids
from shapes import roberta as roberta_config
from tiny import GHOST, HOOKS, MAKERS, OURS, PLAIN, Case, Step, grouped, prepared, trainable
from torch import Tensor, nn
from weights import weights

import groupclip as gc
from groupclip.memory import measure
from groupclip.models import build_model
from groupclip.noise.jointly import add_to_all
from groupclip.noise.sources import SecureNoise
from groupclip.run.environment import environment

#: Beside all-layer, block-wise and layer-wise: M groups of equal sizes, M that are planned, and one for each parameter.
MANY = {f"groupclip, {style}": style for style in
        ("uniform:2", "planned:2", "planned:4", "planned:8", "param-wise")}  # fmt: skip
STYLES = OURS | MANY
FEW = OURS | {"groupclip, planned:4": "planned:4"}
ROUNDS = 7


@dataclass(frozen=True)
class Words(Case):
    """A language model: every token of a sample is to be foretold, and its loss is their mean."""

    def losses(self, model: nn.Module) -> Tensor:
        logits = self.logits(model)[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), self.labels[:, 1:], reduction="none").mean(dim=1)


@dataclass(frozen=True)
class Rounded(Case):
    """Trains as PyTorch's mixed precision does: products of the pass in bfloat16, weights and losses in float32."""

    def losses(self, model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.logits(model)
        return F.cross_entropy(logits.float(), self.labels, reduction="none")


def rounded(case: Case) -> Case:
    return Rounded(f"{case.name}, bfloat16", case.model, case.inputs, case.labels)


def vit() -> Case:
    net = build_model("vit-small", input_shape=(3, 224, 224), num_classes=10, seed=0)
    nn.init.normal_(net.get_parameter("head.weight"), std=0.1)
    return Case("ViT-S, T=197, B=8", net, (torch.randn(8, 3, 224, 224),), torch.arange(8))


def roberta(lora: bool = False) -> Case:
    """RoBERTa-base of four layers with random weights."""
    from transformers import RobertaForSequenceClassification

    net = RobertaForSequenceClassification(roberta_config(num_hidden_layers=4, num_labels=2)).train()
    inputs = (ids(4, 256, 50_000), torch.ones(4, 256, dtype=torch.int64))
    if not lora:
        return Case("RoBERTa-base, 4 layers, T=256, B=4", net, inputs, torch.arange(4) % 2)
    from peft import LoraConfig, TaskType, get_peft_model

    adapted = get_peft_model(net, LoraConfig(task_type=TaskType.SEQ_CLS, r=16))  # pyright: ignore[reportArgumentType]
    return Case("the same RoBERTa with LoRA, r=16", adapted.train(), inputs, torch.arange(4) % 2)


def gpt() -> Case:
    """GPT2 of four layers with random weights; its head is its embedding."""
    from transformers import GPT2LMHeadModel

    words = ids(8, 100, 50_000)
    return Words("GPT2, 4 layers, T=100, B=8, tied", GPT2LMHeadModel(gpt2(n_layer=4)).train(), (words,), words)


def cnn() -> Case:
    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

    net = nn.Sequential(
        *stage(3, 32), *stage(32, 32), nn.MaxPool2d(2), *stage(32, 64), *stage(64, 64), nn.MaxPool2d(2),
        *stage(64, 128), *stage(128, 128), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    return Case("CNN of 0.55 M, 32 px, B=128", net, (torch.randn(128, 3, 32, 32),), torch.arange(128) % 10)


def mlp() -> Case:
    net = nn.Sequential(
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    )  # fmt: skip
    return Case("MLP of 3 layers of 1024, B=256", net, (torch.randn(256, 1024),), torch.arange(256) % 10)


CASES: dict[str, Callable[[], Case]] = {
    "vit": vit, "roberta": roberta, "gpt2": gpt, "lora": lambda: roberta(lora=True), "cnn": cnn, "mlp": mlp,
}  # fmt: skip
#: In mixed precision. They have no goal of their own: plain training in bfloat16 is quicker too.
ROUNDED: dict[str, Callable[[], Case]] = {
    "vit-bf16": lambda: rounded(vit()), "roberta-bf16": lambda: rounded(roberta()), "cnn-bf16": lambda: rounded(cnn()),
}  # fmt: skip
PARTS = [*CASES, *ROUNDED, "growth", "weights"]
CURVES = ("vit", "roberta", "gpt2")  # the models whose time and memory are shown for every number of groups


def batch_of(case: Case) -> Any:
    return (*case.inputs, case.labels)


def losses_of(case: Case) -> Callable[[nn.Module, Any], Tensor]:
    """The losses of any batch like the case's, which may have no numbers."""
    return lambda model, batch: replace(case, inputs=batch[:-1], labels=batch[-1]).losses(model)


def partitioned(case: Case, style: str) -> gc.Partition:
    if not style.startswith("planned:"):
        return gc.partition(case.model, style)
    most = int(style.removeprefix("planned:"))
    return gc.plan(case.model, batch_of(case), groups=most, loss=losses_of(case)).partition


def begun(case: Case, way: str, groups: gc.Partition | None = None) -> Step:
    """A step on a copy of the model, in these groups or as a way of :mod:`tiny`, made once: what is learnt once isn't counted."""
    model = copy.deepcopy(case.model)
    step = MAKERS[way](model, case, 1.0) if groups is None else grouped(model, case, 1.0, groups)
    step()
    return step


def peak(case: Case, groups: gc.Partition | None) -> int:
    """Most live bytes of a forward and backward pass beside parameters and buffers."""
    return measure(copy.deepcopy(case.model), batch_of(case), groups, loss=losses_of(case)).peak


def noise(case: Case, rounds: int) -> float:
    """Milliseconds of the noise on all trainable parameters; the median."""
    source = SecureNoise()
    sums = [(torch.zeros_like(p), 1.0) for p in case.model.parameters() if p.requires_grad]
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        add_to_all(source, sums)
        taken.append(time.perf_counter() - start)
    return round(1e3 * statistics.median(taken), 2)


def steps(case: Case, rounds: int, styles: dict[str, str]) -> dict[str, Any]:
    """Every way on one model: time, memory and FLOPs over plain; or why it is refused."""
    made: dict[str, Step] = {}
    groups: dict[str, gc.Partition] = {}
    refused: dict[str, str] = {}
    for way in (PLAIN, *styles, HOOKS, GHOST):
        try:
            if way in styles:
                groups[way] = partitioned(case, styles[way])
            made[way] = begun(case, way, groups.get(way))
        except Exception as error:  # whatever a library raises is what the table shows
            refused[way] = refusal(error)
    calls = {way: python_calls(step) for way, step in made.items()}
    counted = {way: flops(step) for way, step in made.items()}
    times = timed(made, rounds)
    held = {way: peak(case, groups.get(way)) for way in made if way == PLAIN or way in groups}
    rows = {
        way: compared(times, way, PLAIN) | {
            "groups": len(groups[way]) if way in groups else None,
            "calls over plain a parameter": round((calls[way] - calls[PLAIN]) / case.trainable(), 1),
            "flops over plain": round(counted[way] / counted[PLAIN], 3),
            "memory over plain": round(held[way] / held[PLAIN], 3) if way in held else None,
        }
        for way in made
    }  # fmt: skip
    return {
        "name": case.name, "parameters": case.trainable(), "numbers": sum(p.numel() for p in trainable(case.model)),
        "plain MB": round(held[PLAIN] / 1e6, 1), "noise, ms": noise(case, rounds), "ways": rows, "refused": refused,
    }  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Of a small transformer: B, T, width, depth."""

    samples: int = 4
    positions: int = 32
    width: int = 128
    depth: int = 2

    def case(self) -> Case:
        layer = nn.TransformerEncoderLayer(self.width, 4, 4 * self.width, dropout=0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, self.depth, enable_nested_tensor=False)
        net = nn.Sequential(encoder, _First(), nn.Linear(self.width, 2))
        x = torch.randn(self.samples, self.positions, self.width)
        return Case(f"{self}", net.train(), (x,), torch.arange(self.samples) % 2)


class _First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def doubled(of: str) -> list[Size]:
    """The small transformer, and what doubling one of its sizes thrice gives."""
    start = Size()
    return [Size(**{of: getattr(start, of) * 2**n}) for n in range(4)]


def growth(rounds: int) -> dict[str, Any]:
    """How the cost grows with each size, all else being equal: over all layers and layer by layer."""
    found: dict[str, Any] = {}
    for of in ("samples", "positions", "width", "depth"):
        rows = {}
        for size in doubled(of):
            case = size.case()
            ways = {way: prepared(case, way) for way in (PLAIN, "groupclip, all-layer", "groupclip, layer-wise")}
            times = timed(ways, rounds)
            rows[str(getattr(size, of))] = {way: compared(times, way, PLAIN) for way in ways}
        found[of] = rows
    return found


def measured(rounds: int, models: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """Measure what the page shows, as JSON has it: these models, how the cost grows, and what gradients of weights alone take."""
    found: dict[str, Any] = {"models": {}}
    if "weights" in parts:
        found["weights"] = {}
        for name, make in CASES.items():
            torch.manual_seed(SEED)
            case = make()
            found["weights"][name] = weights(case, rounds) | {"noise": noise(case, rounds)}
    for name in models:
        torch.manual_seed(SEED)
        load = round(os.getloadavg()[0], 1)
        of = steps((CASES | ROUNDED)[name](), rounds, STYLES if name in CURVES else FEW)
        found["models"][name] = of | {"load before": load, "rounds": rounds}
    if "growth" in parts:
        torch.manual_seed(SEED)
        found["growth"] = growth(rounds)
    versions = {name: metadata.version(name) for name in ("opacus", "transformers", "peft")}
    return found | {"environment": environment(torch.device("cpu")) | versions, "seed": SEED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=Path, help="the file to write; without it, the figures are printed")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")  # of Opacus's and torch's hooks
    logging.disable(logging.WARNING)  # that batches are of a sampling of one's own, once for each engine
    models = [name for name in (*CASES, *ROUNDED) if name in given.only]
    found = measured(given.rounds, models, given.only)
    if given.json is None:
        print(json.dumps(found, indent=1))
        return
    before = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {"models": {}}
    together = before | found | {"models": before["models"] | found["models"]}
    given.json.write_text(json.dumps(together, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
