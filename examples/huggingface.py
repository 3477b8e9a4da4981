"""Fine-tune a text classifier of transformers privately on a CSV file with the columns ``text`` and ``label``.

    python examples/huggingface.py reviews.csv --labels negative,positive --model distilbert-base-uncased --out /tmp/reviews

``--model`` is a name on the Hugging Face hub, or a folder with a model and its tokenizer. The base model must not have seen the
records. Needs: pip install -e . "transformers>=5.24"
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

import groupclip as gc


def records(path: Path, labels: Sequence[str], tokenizer, length: int) -> list[dict]:
    """The rows as token ids and the number of the label. The label set is given, not counted: it is public."""
    numbers = {label: number for number, label in enumerate(labels)}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if unknown := {row["label"] for row in rows} - set(numbers):
        raise SystemExit(f"{path} has labels that --labels doesn't name: {', '.join(sorted(unknown))}")
    ids = tokenizer([row["text"] for row in rows], truncation=True, max_length=length)["input_ids"]
    return [{"input_ids": text, "labels": numbers[row["label"]]} for text, row in zip(ids, rows, strict=True)]


def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """One loss a sample, ``[B]``."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return F.cross_entropy(logits, batch["labels"], reduction="none")


def train(given: argparse.Namespace) -> gc.Engine:
    """Train in groups of blocks, and write model, tokenizer, card and record to ``given.out``."""
    labels = given.labels.split(",")
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(labels)).train()
    dataset = records(given.csv, labels, tokenizer, given.max_length)
    delta = given.delta or gc.default_delta(len(dataset))
    collate = DataCollatorWithPadding(tokenizer)

    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    plan = gc.Mechanism(dataset_size=len(dataset), expected_batch_size=given.batch_size, steps=given.steps)
    plan = plan.calibrate(epsilon=given.epsilon, delta=delta)
    gc.check(model, losses, collate(dataset[:4]), given.clipping)  # are samples kept apart?

    engine = gc.attach(model, optimizer, given.clipping, plan)
    for step, batch in enumerate(gc.poisson_batches(dataset, plan, microbatch=given.microbatch, collate=collate), 1):
        for part in batch:
            engine.backward(losses(model, part))
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} of {plan.steps}")
    record = engine.record(delta=delta)
    engine.detach()

    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    (given.out / "privacy.json").write_text(json.dumps(record.to_dict(), indent=2), encoding="utf-8")
    card = gc.statement.model_card(record, title="A text classifier", tags=["text-classification"])
    (given.out / "README.md").write_text(card, encoding="utf-8")
    print(record.text())
    return engine


def main(arguments: Sequence[str] | None = None) -> gc.Engine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="File with the columns text and label.")
    parser.add_argument("--labels", required=True, help="A,B,...: the label set.")
    parser.add_argument("--model", required=True, help="Name on the Hugging Face hub, or a folder.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for model, tokenizer, card and record.")
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--delta", type=float, help="Default: min(1e-5, 1 / (2 * number of rows)).")
    parser.add_argument("--clipping", default="block-wise", help="Style of the groups.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="EXPECTED size of a batch.")
    parser.add_argument("--microbatch", type=int, default=16, help="Most samples held at once.")
    parser.add_argument("--max-length", type=int, default=128, help="Most tokens of a text.")
    parser.add_argument("--lr", type=float, default=5e-4)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    return train(given)


if __name__ == "__main__":
    main()
