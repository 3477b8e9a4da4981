"""Plain names of settings and facts, for pages that people read: ``train_size`` is "training samples" there."""

from collections.abc import Mapping
from typing import Any

_NAMES = {
    # settings of a run
    "model_options": "options of the model",
    "task_options": "options of the task",
    "clipping": "groups",
    "clip": "clip function",
    "thresholds": "clipping thresholds",
    "adaptive": "adaptive thresholds",
    "no_privacy": "trained without privacy",
    "epsilon": "epsilon, at most",
    "lax_delta": "a delta of 1/n or more was asked for",
    "adjacency": "neighbouring data sets",
    "max_batch_size": "cap of a batch",
    "allocation": "noise is shared among groups",
    "hardened": "noise on a grid (hardened)",
    "batch_size": "expected batch size",
    "microbatch": "samples held at once, at most",
    "lr": "learning rate",
    "schedule": "schedule of the learning rate",
    "momentum": "momentum (of sgd)",
    "pretrain_steps": "steps of public pretraining",
    "seed": "seed of the first weights (public)",
    "eval_every": "steps between evaluations",
    # of tasks and models
    "text_column": "column of texts",
    "label_column": "column of labels",
    "user_column": "column of users",
    "max_length": "words kept of a text",
    "prefix": "letters of a word's beginning, taken as a word",
    "vocabulary": "buckets of words",
    "image_size": "side of an image, pixels",
    "patch_size": "side of a patch, pixels",
    # of data
    "train_size": "training samples",
    "train_users": "users in the training data",
    "test_size": "held-out samples",
    "label_set": "set of labels",
    # of the process
    "python": "Python",
    "numpy": "NumPy",
    "torch": "PyTorch",
}


def with_commas(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write counts as a statement does, 1437 as "1,437"; a seed is no count."""
    return {key: f"{value:,}" if type(value) is int and key != "seed" else value for key, value in facts.items()}


def plain_name(key: str) -> str:
    """Return the words for a key; one without words of its own gets spaces for underscores."""
    return _NAMES.get(key, key.replace("_", " "))
