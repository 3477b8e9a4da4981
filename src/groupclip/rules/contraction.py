"""Any sum of products with one parameter in it, told by letters: what ``einsum``, stacked products and vectors come to.

With a parameter W among the operands, each letter plays one part. Those of W that are in the result and in no other
operand are its outputs p; those that are summed over are its inputs d; those that are in W, in another operand and in the
result number independent maps h (the heads of an attention). All other letters of the result are positions t. The samples
have a letter of their own. The gradient of sample i is then ``sum_t g[i, t, h, p] a[i, t, h, d]``, where a is the product of the
other operands and g the gradient of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters

import torch
from torch import Tensor

from ..autograd.dispatch import dispatch
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.convolution import Convolution, Geometry
from ..persample.dense import Dense
from ..persample.outer import Outer
from .shapes import autocast_to


@dataclass(frozen=True)
class _Parts:
    """The letters of the parameter by the part they play, those of the result that it doesn't have, and the samples'."""

    maps: str
    outputs: str
    inputs: str
    alone: str
    positions: str
    sample: str


def contraction(call: Call, operands: Sequence[Tensor], terms: Sequence[str], result: str) -> Tensor:
    """Run a sum of products and book the gradients of the one private operand.

    Args:
        call: the operation.
        operands: tensors, of which one is a parameter.
        terms: the letters of each operand's dimensions.
        result: the letters of the result's dimensions.

    Raises:
        NotSplit: more than one operand is private, a letter stands for a diagonal or is broadcast, or it
            stands alone and is summed over.
    """
    private = [i for i, operand in enumerate(operands) if call.is_private(operand)]
    if len(private) != 1 or any(len(set(term)) != len(term) for term in (*terms, result)):
        raise NotSplit
    sizes = _sizes(operands, terms)
    others = [i for i in range(len(operands)) if i != private[0]]
    weight, own = operands[private[0]], terms[private[0]]
    sample = next(x for x in ascii_letters if x not in sizes)
    letters = _parts(own, "".join(terms[i] for i in others), result, sample)
    if any(sizes[letter] != 1 for letter in letters.alone):
        raise NotSplit
    plain = [autocast_to(call.samples(operands[i])) for i in others]
    held = [sample + terms[i] for i in others]
    equation = [own] * len(operands)
    for i, term in zip(others, held, strict=True):
        equation[i] = term
    given = iter(plain)
    values = [call.value(weight) if i == private[0] else next(given) for i in range(len(operands))]
    out = torch.einsum(",".join(equation) + "->" + sample + result, *(autocast_to(v) for v in values))
    order = letters.alone + letters.maps + letters.outputs + letters.inputs
    maps, outputs, inputs = (prod(sizes[x] for x in part) for part in (letters.maps, letters.outputs, letters.inputs))
    matrix = dispatch(Tensor.permute, (weight, [own.index(letter) for letter in order]), {})
    shape = (outputs, inputs) if not letters.maps else (maps * outputs, inputs, 1)
    if not letters.outputs and not letters.inputs:
        shape = (maps,)
    matrix = dispatch(Tensor.reshape, (matrix, shape), {})
    front = letters.sample + letters.positions + letters.maps
    product = ",".join(held) + "->" + front + letters.inputs

    def by_sample(x: Tensor, features: int) -> Tensor:
        """Turn ``[B, *positions, *maps, *features]`` into ``[B, T, h, features]``."""
        return x.reshape(len(x), prod(sizes[p] for p in letters.positions), maps, features)

    def book(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> list[PerSample]:
        a = by_sample(torch.einsum(product, *saved), inputs)
        g = by_sample(grads[0].permute([(sample + result).index(x) for x in front + letters.outputs]), outputs)
        if len(shape) == 1:
            wide = torch.promote_types(g.dtype, torch.float32)
            return [Dense((a.to(wide) * g).sum(dim=(1, 3)))]
        if len(shape) == 2:
            return [Outer(a.squeeze(2), g.squeeze(2))]
        # Independent maps are groups of channels, and positions the pixels of a convolution with a kernel of one.
        channels = [x.permute(0, 2, 3, 1).flatten(1, 2).unsqueeze(1) for x in (a, g)]
        return [Convolution(channels[0], channels[1], Geometry((1,), (1,), (0,), (1,), maps))]

    return call.tap([out], plain, [matrix], book)[0]


def _sizes(operands: Sequence[Tensor], terms: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for operand, term in zip(operands, terms, strict=True):
        if operand.dim() != len(term):
            raise NotSplit
        for letter, size in zip(term, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise NotSplit  # a dimension of one that is broadcast
    return sizes


def _parts(own: str, others: str, result: str, sample: str) -> _Parts:
    return _Parts(
        maps="".join(x for x in own if x in others and x in result),
        outputs="".join(x for x in own if x not in others and x in result),
        inputs="".join(x for x in own if x in others and x not in result),
        alone="".join(x for x in own if x not in others and x not in result),
        positions="".join(x for x in result if x not in own),
        sample=sample,
    )
