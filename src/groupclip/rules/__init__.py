"""One file per kind of operation: how its output gradient becomes per-sample gradients of its parameters.

A rule runs the operation with detached parameters (so autograd computes input gradients and no weight gradient) and
ties the output to the gates of the parameters. Importing this package registers all rules.

Legend of all files here: B samples, T positions that share a parameter, d inputs, p outputs.
"""

from . import (
    affine,
    attention,
    bags,
    convolution,
    einsum,
    embedding,
    indexing,
    matmul,
    normalisation,
    recurrent,
    transposed,
)

__all__ = [
    "affine", "attention", "bags", "convolution", "einsum", "embedding", "indexing", "matmul", "normalisation", "recurrent",
    "transposed",
]  # fmt: skip
