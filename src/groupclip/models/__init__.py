"""Models in which no sample sees another (no batch normalisation), by name.

The vision transformers have the shapes of the paper and the parameter names of timm, so timm's weights load
by name. Everything is plain ``torch.nn``: groupclip needs nothing special from a model.
"""

from .pretrain import pretrain_on_letters
from .registry import MODELS, ModelSpec, build_model

__all__ = ["MODELS", "ModelSpec", "build_model", "pretrain_on_letters"]
