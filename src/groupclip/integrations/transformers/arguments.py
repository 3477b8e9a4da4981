"""Settings of a Trainer that a private run can't have: what was found, why not, and what to write instead.

Nothing is overridden in silence. What a Trainer is given is what it does, or it is refused before anything is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from transformers import DataCollatorWithFlattening, TrainingArguments
from transformers.training_args import OptimizerNames

from ...errors import BudgetExceeded, PrivacyViolation
from ...privacy.mechanism import Mechanism
from ..epochs import steps_in_an_epoch


class Refusal(NamedTuple):
    """One setting that can't be: when, and why, and the fix."""

    name: str
    is_wrong: Callable[[Any], bool]
    why: str
    fix: str


_TOKENS = "counts the tokens of the batches that were drawn, which have no noise: whose records were drawn is secret"
_PACKED = "puts several records into one row, where their gradients can't be told apart"

REFUSALS = (
    Refusal(
        "max_grad_norm", lambda value: value is not None and value > 0,
        "clips a gradient that is clipped by samples already, before the noise that is made for it is added",
        "max_grad_norm=0, and PrivateTrainer(.., thresholds=R) says how long a sample's gradient may be",
    ),
    Refusal(
        "gradient_accumulation_steps", lambda value: value != 1,
        "would join batches that were drawn for several steps of the plan",
        "gradient_accumulation_steps=1: a batch is as large as Mechanism(expected_batch_size=..) says, and is computed in "
        "micro-batches of per_device_train_batch_size",
    ),
    Refusal(
        "train_sampling_strategy", lambda value: str(value) != "random",
        "chooses batches by an order or by length, while epsilon is for batches that chance alone chose",
        "train_sampling_strategy='random': groupclip draws the batches (padding to the longest of a micro-batch is as ever)",
    ),
    Refusal(
        "dataloader_drop_last", bool,
        "leaves records out that were drawn",
        "dataloader_drop_last=False",
    ),
    Refusal(
        "data_seed", lambda value: value is not None,
        "asks for batches that a seed gives again, while epsilon is for batches that nobody can guess",
        "data_seed=None: batches are drawn under a secret key",
    ),
    Refusal(
        "auto_find_batch_size", bool,
        "draws anew after a batch that didn't fit the memory, so which batches are used depends on what is in them",
        "auto_find_batch_size=False and a smaller per_device_train_batch_size, which is the micro-batch and changes no result",
    ),
    Refusal(
        "fp16", bool,
        "brings a scaler, which divides gradients after they were clipped and skips steps by looking at gradients without noise",
        "bf16=True, or float32",
    ),
    Refusal(
        "neftune_noise_alpha", lambda value: value is not None,
        "scales its noise by the padded length of the micro-batch, so every sample's gradient depends on the longest other one",
        "neftune_noise_alpha=None",
    ),
    Refusal(
        "include_num_input_tokens_seen", lambda value: value not in ("no", False, None),
        _TOKENS,
        "include_num_input_tokens_seen='no'",
    ),
    Refusal(
        "optim", lambda value: value in (OptimizerNames.LOMO, OptimizerNames.ADALOMO) or "layerwise" in str(value).lower(),
        "moves weights during the backward pass, before there is noise",
        "optim='adamw_torch', or another whose step comes after the backward pass",
    ),
    Refusal(
        "debug", lambda value: "underflow_overflow" in str(value).lower(),
        "prints values of single batches, which have no noise",
        "debug=''",
    ),
    Refusal(
        "n_gpu", lambda value: value > 1,
        "runs the model as copies (nn.DataParallel), whose parameters nobody clips",
        "one device: CUDA_VISIBLE_DEVICES=0",
    ),
    Refusal(
        "deepspeed", lambda value: bool(value),
        "takes the backward pass and the step into an engine of its own",
        "deepspeed=None",
    ),
    Refusal(
        "fsdp", lambda value: bool(value),
        "trains on several processes, which would add as many noises",
        "leave fsdp out, on one process",
    ),
    Refusal(
        "hub_strategy", lambda value: str(getattr(value, "value", value)) in ("checkpoint", "all_checkpoints"),
        "publishes whole checkpoints: states of random number generators, the optimizer and the settings are no release",
        "hub_strategy='end' or 'every_save', which publish weights, card and privacy.json",
    ),
    Refusal("packing", bool, _PACKED, "packing=False: one record a row"),
    Refusal("eval_packing", bool, _PACKED, "eval_packing=False"),
    Refusal("padding_free", bool, _PACKED, "padding_free=False"),
)  # fmt: skip


def check_arguments(args: TrainingArguments | None, collator: object = None) -> None:
    """Refuse settings that would break the guarantee.

    Raises:
        PrivacyViolation: one that would; the message names the fix.
        ValueError: no settings at all.
    """
    if args is None:
        raise ValueError(
            "args is None: pass TrainingArguments(output_dir=.., max_steps=mechanism.steps, max_grad_norm=0); the defaults of "
            "transformers clip gradients a second time and don't know how many steps are planned"
        )
    for name, is_wrong, why, fix in REFUSALS:
        found = _value(args, name)
        if found is not None and is_wrong(found):
            raise PrivacyViolation(f"{name}={found!r} {why}. Write {fix}")
    if isinstance(collator, DataCollatorWithFlattening):
        raise PrivacyViolation(
            f"data_collator is {type(collator).__name__}, which {_PACKED}. Write DataCollatorWithPadding(tokenizer), or another "
            "that keeps one record a row"
        )


def _value(args: TrainingArguments, name: str) -> Any:
    """Return a setting; None where this kind of arguments doesn't have it (``packing`` is trl's)."""
    return args.n_gpu if name == "n_gpu" else vars(args).get(name)


def planned_steps(args: TrainingArguments, mechanism: Mechanism) -> int:
    """Return the number of steps that ``train()`` goes to: ``max_steps``, or the epochs if the plan has just as many.

    Raises:
        ValueError: another number than the plan's.
        BudgetExceeded: more than it.
    """
    if args.max_steps > mechanism.steps:
        raise BudgetExceeded(
            f"max_steps={args.max_steps}, and the mechanism plans {mechanism.steps} steps: its noise is calibrated for these. "
            f"Write max_steps={mechanism.steps}, or plan Mechanism(steps={args.max_steps}) and calibrate it"
        )
    if args.max_steps > 0:
        return args.max_steps
    asked = math.ceil(args.num_train_epochs * steps_in_an_epoch(mechanism))
    if asked != mechanism.steps:
        raise ValueError(
            f"num_train_epochs={args.num_train_epochs:g} are {asked} steps ({steps_in_an_epoch(mechanism)} an epoch at the sample "
            f"rate {mechanism.sample_rate:.6g}), and the mechanism plans {mechanism.steps}. Write max_steps={mechanism.steps}, or "
            f"plan Mechanism(steps={asked}) and calibrate it"
        )
    return asked
