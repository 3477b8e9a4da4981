"""Whole steps on one GPU, private and plain and under Opacus: time, memory, kernel launches, device reads; and parity.

    python benchmarks/gpu.py FOLDER                # writes FOLDER/parity.json and FOLDER/steps.json
    python benchmarks/gpu.py FOLDER --only cnn     # one workload, beside what the file has

Each workload is written when it is done, so a run that is cut short leaves what it measured. Models have random weights; passes
run in bfloat16 by autocast, private and plain alike. Needs opacus, transformers and peft.
"""

from __future__ import annotations

import argparse
import copy
import gc as garbage
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from performance import SEED, compared, refusal, timed
from shapes import gpt2, ids, llama
from shapes import roberta as roberta_config
from speed import Words, cnn, partitioned
from tiny import CASES as TINY
from tiny import GHOST, HOOKS, MAKERS, OURS, OVER_ALL_LAYERS, PLAIN, Case, Step, exact, grouped, labels
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from groupclip.models import build_model
from groupclip.paper.bench import waiting
from groupclip.run.environment import environment

STYLES = OURS | {"groupclip, planned:4": "planned:4"}
ROUNDS = 7
Made = Callable[[], Case]


def vit(name: str, samples: int) -> Case:
    net = build_model(name, input_shape=(3, 224, 224), num_classes=10, seed=0)
    nn.init.normal_(net.get_parameter("head.weight"), std=0.1)
    return Case(f"{name}, T=197, B={samples}", net, (torch.randn(samples, 3, 224, 224),), torch.arange(samples) % 10)


def roberta_large(samples: int) -> Case:
    from transformers import RobertaForSequenceClassification

    config = roberta_config(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=2)
    inputs = (ids(samples, 256, 50_000), torch.ones(samples, 256, dtype=torch.int64))
    return Case(f"RoBERTa-large, T=256, B={samples}", RobertaForSequenceClassification(config).train(), inputs, labels(samples))


def gpt2_large(length: int, samples: int) -> Case:
    from transformers import GPT2LMHeadModel

    words = ids(samples, length, 50_000)
    net = GPT2LMHeadModel(gpt2(n_embd=1280, n_layer=36, n_head=20)).train()
    return Words(f"GPT2-large, T={length}, B={samples}", net, (words,), words)


def llama_lora(samples: int) -> Case:
    """The shape of Llama-3.2-1B with LoRA on its projections."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import LlamaForCausalLM

    config = llama(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192,
        vocab_size=128_256, tie_word_embeddings=True,
    )  # fmt: skip
    lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    words = ids(samples, 512, 100_000)
    net = get_peft_model(LlamaForCausalLM(config), lora)  # pyright: ignore[reportArgumentType]
    return Words(f"Llama of 1.2 B with LoRA, T=512, B={samples}", net.train(), (words,), words)


WORKLOADS: dict[str, Made] = {
    "vit-base": lambda: vit("vit-base", 32), "vit-large": lambda: vit("vit-large", 16),
    "roberta-large": lambda: roberta_large(8), "gpt2-large-100": lambda: gpt2_large(100, 8),
    "gpt2-large-1024": lambda: gpt2_large(1024, 2), "llama-lora": lambda: llama_lora(4), "cnn": cnn,
}  # fmt: skip


@dataclass(frozen=True)
class Autocast(Words):
    """A case whose losses are computed in bfloat16, of whatever kind ``of`` is."""

    of: Case | None = None

    def losses(self, model: nn.Module) -> Tensor:
        assert self.of is not None
        with torch.autocast(self.labels.device.type, torch.bfloat16):
            return replace(self.of, inputs=self.inputs, labels=self.labels).losses(model).float()

    def logits(self, model: nn.Module) -> Tensor:
        with torch.autocast(self.labels.device.type, torch.bfloat16):
            return super().logits(model)


def on(case: Case, device: torch.device, half: bool) -> Case:
    inputs = tuple(x.to(device) for x in case.inputs)
    moved = replace(case, model=case.model.to(device), inputs=inputs, labels=case.labels.to(device))
    return Autocast(moved.name, moved.model, moved.inputs, moved.labels, moved) if half else moved


def peak(step: Step, device: torch.device) -> int | None:
    """Bytes of the caching allocator that a step takes beside what lives between steps; None without one."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def counts(step: Step) -> dict[str, int]:
    """Kernels that a step launches, and values that it reads from the device, as torch's profiler sees them."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as seen:
        step()
    events = {event.key: event.count for event in seen.key_averages()}
    launches = sum(count for key, count in events.items() if "LaunchKernel" in key)
    return {"launches": launches, "device reads": events.get("aten::_local_scalar_dense", 0)}


def measured(case: Case, device: torch.device, rounds: int, styles: Mapping[str, str] = STYLES) -> dict[str, Any]:
    """Every way on one workload. Each has its own copy of the model, and steps three times before it is timed."""
    steps: dict[str, Step] = {}
    refused: dict[str, str] = {}
    for way in (PLAIN, *styles, HOOKS, GHOST):
        try:
            model = copy.deepcopy(case.model)
            made = grouped(model, case, 1.0, partitioned(case, styles[way])) if way in styles else MAKERS[way](model, case, 1.0)
            step = waiting(made, device)
            for _ in range(3):
                step()
            steps[way] = step
        except Exception as error:  # what a library raises, too little memory included, is what the table shows
            refused[way] = refusal(error)
    times = timed(steps, rounds)
    rows = {
        way: compared(times, way, PLAIN) | counts(step) | {"peak bytes": peak(step, device)} for way, step in steps.items()
    }
    return {"name": case.name, "parameters": case.trainable(), "ways": rows, "refused": refused, "rounds": rounds}


def parity(device: torch.device) -> dict[str, Any]:
    """Whether a step of each tiny model on the device is that of a loop over single samples there, in float64."""
    found: dict[str, Any] = {}
    for name, make in TINY.items():
        torch.manual_seed(SEED)
        case = on(make(), device, half=False)
        found[name] = {}
        for way in OVER_ALL_LAYERS:
            try:
                found[name][way] = exact(case, way)
            except Exception as error:
                found[name][way] = refusal(error)
    return found


def about(device: torch.device) -> dict[str, str]:
    versions = {name: metadata.version(name) for name in ("opacus", "transformers", "peft")}
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return environment(device) | versions | gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    given = parser.parse_args()
    device = torch.device(given.device)
    warnings.simplefilter("ignore")  # of Opacus's and torch's hooks
    logging.disable(logging.WARNING)  # that batches are of a sampling of one's own, once for each engine
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "parity.json").write_text(json.dumps(parity(device), indent=1) + "\n", encoding="utf-8")
    file = given.folder / "steps.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"models": {}}
    for name in given.only:
        torch.manual_seed(SEED)
        found["models"][name] = measured(on(WORKLOADS[name](), device, half=True), device, given.rounds)
        file.write_text(json.dumps(found | {"environment": about(device)}, indent=1) + "\n", encoding="utf-8")
        garbage.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
