"""``torch.einsum`` and the products that it can write: of stacks of matrices, of vectors, ``inner``, ``outer``, ``bilinear``."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import RULES, WRITTEN_OUT, dispatch_or_run
from ..autograd.operation import Call, NotSplit
from .contraction import contraction


def einsum(call: Call, equation: str, *operands: Tensor) -> Tensor:
    """Contract with one private operand, on either side. Sublists and lists of operands arrive in this form."""
    terms, result = _read(equation, [operand.dim() for operand in operands])
    return contraction(call, operands, terms, result)


def _read(equation: str, dims: list[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result: an ellipsis written out, and a result that is left out put in."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(dims):
        raise NotSplit  # torch says what is wrong
    unused = [x for x in ascii_letters if x not in equation]
    rests = [n - len(term.replace("...", "")) if "..." in term else 0 for term, n in zip(terms, dims, strict=True)]
    dots = "".join(unused[: max(rests)])
    terms = [term.replace("...", dots[len(dots) - n :]) for term, n in zip(terms, rests, strict=True)]
    if arrow:
        return terms, result.replace("...", dots)
    joined = "".join(terms)
    return terms, dots + "".join(x for x in sorted(set(joined)) if joined.count(x) == 1 and x not in dots)


def product(call: Call, left: Tensor, right: Tensor) -> Tensor:
    """Take ``torch.matmul`` of any dimensions: vectors, matrices, and stacks that broadcast."""
    letters = iter(ascii_letters)
    rows, inner, columns = (next(letters) for _ in range(3))
    ends = ([inner] if left.dim() == 1 else [rows, inner], [inner] if right.dim() == 1 else [inner, columns])
    stacks = [[next(letters) for _ in range(x.dim() - 2)] for x in (left, right)]
    result: list[str] = []
    for i in range(1, max(map(len, stacks)) + 1):  # stacks meet from the right
        first, second = (side[-i] if i <= len(side) else None for side in stacks)
        if first is not None and second is not None and left.shape[-2 - i] == right.shape[-2 - i]:
            stacks[1][-i] = second = first
        kept = second if first is None or (second is not None and left.shape[-2 - i] == 1) else first
        assert kept is not None
        result.insert(0, kept)
    result += [rows] * (left.dim() > 1) + [columns] * (right.dim() > 1)
    terms = ["".join(stack + end) for stack, end in zip(stacks, ends, strict=True)]
    return contraction(call, [left, right], terms, "".join(result))


def mv(call: Call, input: Tensor, vec: Tensor) -> Tensor:
    """Multiply a matrix by a vector."""
    return product(call, input, vec)


def inner(call: Call, input: Tensor, other: Tensor) -> Tensor:
    """Contract the last dimensions of both."""
    if input.dim() == 0 or other.dim() == 0:
        raise NotSplit
    first, second = ascii_letters[1 : input.dim()], ascii_letters[input.dim() : input.dim() + other.dim() - 1]
    return contraction(call, [input, other], [first + "a", second + "a"], first + second)


def outer(call: Call, input: Tensor, vec2: Tensor) -> Tensor:
    """Multiply two vectors, each entry of one by each of the other."""
    return contraction(call, [input, vec2], ["a", "b"], "ab")


def tensordot(call: Call, a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2, out: Tensor | None = None) -> Tensor:
    """Over the last dimensions of one and the first of the other, or over the pairs of dimensions given."""
    if out is not None or isinstance(dims, Tensor):
        raise NotSplit
    pairs = (list(range(-dims, 0)), list(range(dims))) if isinstance(dims, int) else [list(side) for side in dims]
    first, second = list(ascii_letters[: a.dim()]), list(ascii_letters[a.dim() : a.dim() + b.dim()])
    for i, j in zip(*pairs, strict=True):
        second[j] = first[i]
    summed = {first[i] for i in pairs[0]}
    result = "".join(x for x in (*first, *second) if x not in summed)
    return contraction(call, [a, b], ["".join(first), "".join(second)], result)


def bilinear(call: Call, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Take ``input1 [.., d]``, ``input2 [.., e]``, ``weight [p, d, e]``, ``bias [p]``."""
    front = ascii_letters[: input1.dim() - 1]
    out = dispatch_or_run(call, torch.einsum, f"{front}y,{front}z,xyz->{front}x", input1, input2, weight)
    return out if bias is None else dispatch_or_run(call, torch.add, out, bias)


def bmm(call: Call, input: Tensor, mat2: Tensor) -> Tensor:
    """Multiply by a stack of matrices that is a parameter."""
    return product(call, input, mat2)


def baddbmm(call: Call, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Take ``beta input + alpha batch1 @ batch2``, any of them private."""
    if beta == 0:
        raise NotSplit
    out = dispatch_or_run(call, torch.mul, dispatch_or_run(call, torch.bmm, batch1, batch2), alpha)
    return dispatch_or_run(call, torch.add, out, dispatch_or_run(call, torch.mul, input, beta))


RULES[torch.einsum] = einsum
RULES[torch.bmm] = RULES[Tensor.bmm] = bmm
WRITTEN_OUT[torch.baddbmm] = WRITTEN_OUT[Tensor.baddbmm] = baddbmm
RULES[torch.mv] = RULES[Tensor.mv] = mv
RULES[torch.inner] = RULES[Tensor.inner] = inner
for _outer in (torch.outer, Tensor.outer, torch.ger, Tensor.ger):
    RULES[_outer] = outer
RULES[torch.tensordot] = tensordot
WRITTEN_OUT[F.bilinear] = bilinear
