"""Fine-tune a text classifier with a private Trainer on a CSV file with the columns ``text`` and ``label``.

    python examples/trainer.py reviews.csv --labels negative,positive --model distilbert-base-uncased --out /tmp/reviews
    python examples/trainer.py reviews.csv .. --out /tmp/reviews --resume    # goes on after an interruption

``--model`` is a name on the Hugging Face hub, or a folder with a model and its tokenizer. The base model must not have seen the
records. Needs: pip install -e ".[transformers]"
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

import groupclip as gc
from groupclip.integrations.transformers import PrivateTrainer


def train(given: argparse.Namespace) -> gc.Engine:
    """Train, and write weights, tokenizer, card and record to ``given.out/release``."""
    labels = given.labels.split(",")  # given, not counted: the label set is public
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    with given.csv.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ids = tokenizer([row["text"] for row in rows], truncation=True, max_length=given.max_length)["input_ids"]
    dataset = [{"input_ids": text, "labels": labels.index(row["label"])} for text, row in zip(ids, rows, strict=True)]

    delta = gc.default_delta(len(dataset))
    plan = gc.Mechanism(dataset_size=len(dataset), expected_batch_size=given.batch_size, steps=given.steps)
    plan = plan.calibrate(epsilon=given.epsilon, delta=delta)
    trainer = PrivateTrainer(
        AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(labels)),
        TrainingArguments(
            output_dir=str(given.out),
            max_steps=plan.steps,
            max_grad_norm=0,  # samples are clipped, and not the batch
            per_device_train_batch_size=given.microbatch,  # most samples held at once; the batch is the plan's
            learning_rate=given.lr,
            save_steps=max(1, plan.steps // 4),
            report_to="none",
        ),
        DataCollatorWithPadding(tokenizer),
        dataset,
        processing_class=tokenizer,
        mechanism=plan,
        groups=given.clipping,
        delta=delta,
    )
    trainer.train(resume_from_checkpoint=given.resume or None)
    trainer.write_release()
    print(trainer.privacy_record().text())
    return trainer.engine


def main(arguments: Sequence[str] | None = None) -> gc.Engine:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="File with the columns text and label.")
    parser.add_argument("--labels", required=True, help="A,B,...: the label set.")
    parser.add_argument("--model", required=True, help="Name on the Hugging Face hub, or a folder.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for checkpoints and the release.")
    parser.add_argument("--resume", action="store_true", help="Go on from the last checkpoint in --out.")
    parser.add_argument("--epsilon", type=float, default=3.0, help="What the whole run may spend.")
    parser.add_argument("--clipping", default="block-wise", help="Style of the groups.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="EXPECTED size of a batch.")
    parser.add_argument("--microbatch", type=int, default=16, help="Most samples held at once.")
    parser.add_argument("--max-length", type=int, default=128, help="Most tokens of a text.")
    parser.add_argument("--lr", type=float, default=5e-4)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
