"""How a per-sample norm is computed: the choice of method, and sums of squares that are right.

For a weight that is used at T positions, with inputs a ``[B, T, d]`` and output gradients g ``[B, T, p]``, the
gradient of sample i is ``g_i^T a_i``. Its squared norm comes

- in closed form for T = 1: ``|a_i|^2 |g_i|^2``;
- from Gram matrices: ``<a_i a_i^T, g_i g_i^T>``, which keeps a and g until the group ends (``T (d + p)`` numbers);
- from the instantiated gradient, which is kept until the group ends (``d p`` numbers) and then only weighted;
- from the instantiated gradients of a few samples at once, which are normed, weighed and dropped (:mod:`.streamed`): one product
  in all and no number kept, but for the one weight of a group whose norm is the last that the factors wait for.

:func:`choose_method` takes whichever keeps less, or the quicker form where few numbers are kept; :func:`streaming_is_quicker`
tells where the last way is. All forms cost one extra product at most; the plain weight gradient is never computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..partition.groups import METHODS

AUTO, GRAM, INSTANTIATED = METHODS

#: As AUTO, for the weight of a group whose other norms are known first.
LAST = "last"

#: Below this ratio of ``<A, G>`` to ``||A|| ||G||`` the terms of the Gram form cancel so much that its rounding
#: shows in the norm (relative error at most about 1e-7 / ratio in float32): the gradient is instantiated instead.
CANCELLATION = 3e-3

_BLOCK = 1 << 20  # columns whose squares are summed in float32 before float64 takes over
_BLOCK_OF_ONE = 1 << 16  # of one sample's, which follow one another: their squares stay in the processor's cache
_SQUARED = 1 << 16  # numbers whose squares are written to memory; of more, that memory costs as much as the squares
_STRETCH = 128  # so many squares are summed one by one in 4 to 16 lanes of a register: 32 roundings at most, 1e-6 of the norm

#: Multiplications and additions of the Gram form that take as long as what streaming does to each number of a gradient beside
#: its product: it is written, normed, weighed and added. From one core with AVX-512; AVX2 has about the same.
_STREAMED_NUMBER = 40

#: Positions of a sample up to which its Gram matrices are formed whole; in strips, what is above the diagonal isn't.
_STRIP = 96

#: How far a product of the Gram form may be from the true one, in roundings, of n numbers each: the first, and sqrt(n) times
#: the second. No proof: four times the most that a search found.
_ROUNDINGS = (8.0, 1.0)


#: Numbers of all samples up to which a weight is instantiated where that keeps more, and by how many times more: its norm and its
#: sum are one operation each then, and those of the Gram form twenty.
_FEW, _MORE = 1 << 16, 4


def choose_method(positions: int, inputs: int, outputs: int, samples: int) -> str:
    """Choose the method that keeps fewer numbers until the group ends, T(d+p) or dp a sample; the quicker one for few numbers."""
    instantiated, factors = inputs * outputs, positions * (inputs + outputs)
    few = positions > 1 and samples * instantiated <= _FEW and instantiated <= _MORE * factors
    return INSTANTIATED if instantiated <= factors or few else GRAM


def streaming_is_quicker(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether ``T^2 (d + p)`` multiplications of Gram matrices take longer than streaming ``d p`` numbers does."""
    return positions * positions * (inputs + outputs) > _STREAMED_NUMBER * inputs * outputs


def forming_again_is_quicker(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether two products in bfloat16 take less time than Gram matrices and one product in float32, at half its speed.

    The two take ``2.2 T d p``; of the other way the product takes ``2 T d p``, and symmetric Gram matrices ``1.2 T^2 (d + p)``.
    """
    return 6 * positions * (inputs + outputs) > inputs * outputs


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of norms and factors: float32 or better. Complex gradients (of derived tensors) stay complex."""
    if dtype in WIDE:
        return WIDE[dtype]
    return torch.complex64 if dtype.is_complex else torch.float32


WIDE = {d: d for d in (torch.float32, torch.float64, torch.complex64, torch.complex128)}


def square_sums(x: Tensor) -> Tensor:
    """Return ``[B]`` sums of squares of the rows of ``x [B, ...]``, right to 1e-6 at any length.

    ``torch.linalg.vector_norm`` in float32 on CPU comes out too small on long vectors (2.7e-3 at 4e7 elements),
    which would let samples keep more than R. Short stretches of a long row are summed so, and stretches pairwise; or blocks are
    summed pairwise in float32, the blocks in float64.
    """
    rows = x if x.dim() == 2 else x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    wide = WIDE.get(x.dtype, torch.float32)
    if rows.numel() > _SQUARED and rows.shape[1] % _STRETCH == 0 and rows.is_contiguous() and not x.dtype.is_complex:
        stretches = rows.view(rows.shape[0], -1, _STRETCH)
        return torch.linalg.vector_norm(stretches, dim=2, dtype=wide).square().sum(dim=1)
    most = _BLOCK if rows.shape[0] > 1 else _BLOCK_OF_ONE
    if rows.shape[1] <= most:
        return rows.to(wide).square().sum(dim=1)
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=x.device)
    for block in rows.split(most, dim=1):
        total += block.to(wide).square().sum(dim=1)
    return total.to(wide)


def lost(dtype: torch.dtype, squares: float) -> float:
    """Bound what underflow takes from a sum of so many squares (or products), in the dtype in which they are added up."""
    return torch.finfo(dtype).tiny * squares


def gram_square_sums(a: Tensor, g: Tensor, weighing: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared norms ``[B]`` of ``g_i^T a_i`` by Gram matrices, a ratio ``[B]`` that shows cancellation, and room ``[B]``.

    Args:
        a: ``[B, T, d]``; g: ``[B, T, p]``. Half precision is widened: Gram matrices with half-precision entries
            give norms that are wrong by their own size, even negative.
        weighing: the relative rounding of weighted terms, where they are rounded to less than float32.

    The room is the square of a length: the norm is too small by no more than that where the ratio isn't below
    ``CANCELLATION``, rounding and underflow counted, nor does the rounding of weighted terms make the gradient longer by more.
    """
    wide = accumulation_dtype(a.dtype)
    positions, inputs, outputs = a.shape[1], a.shape[2], g.shape[2]
    a, g = a.to(wide), g.to(wide)
    tiny, eps = torch.finfo(wide).tiny, torch.finfo(wide).eps / 2
    sizes = [_traces(x) for x in (a, g)]
    # Entries of the order of one: squares of squares would leave the range of float32 at gradients of 1e-10.
    scales = [size.clamp(min=tiny).reciprocal().view(-1, 1, 1) for size in sizes]
    inner, squares = _inner_products(a, g, scales)
    size = squares[0].sqrt() * squares[1].sqrt()
    ratio = torch.where(size > 0, inner / size, 1.0)
    # The terms' norms add up to at most the root of this (Cauchy and Schwarz).
    most = sizes[0].double() * sizes[1].double()
    first, root = _ROUNDINGS
    off = eps * (first + root * (inputs**0.5 + outputs**0.5)) * size / (2 * inner.clamp(min=tiny).sqrt())
    under = (sizes[0] * outputs + sizes[1] * inputs).double() * (tiny * positions)
    return (inner * most).to(wide), ratio, (off + (8 * eps + weighing)).double().square() * most + under


def _traces(x: Tensor) -> Tensor:
    """Return ``[B]`` sums of squares of ``x [B, T, n]``, without a copy. As they only scale, no more than that is asked of them."""
    return torch.linalg.vector_norm(x, dim=2 if x.stride(2) == 1 else 1).square().sum(dim=1)


def _inner_products(a: Tensor, g: Tensor, scales: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return ``<A, G>``, and ``<A, A>`` and ``<G, G>``, each ``[B]``, of the scaled Gram matrices A of ``a`` and G of ``g``.

    They are symmetric: of each strip of rows, what is right of the diagonal's block is left out, and what is left of it counts
    twice.
    """
    positions = a.shape[1]
    height = -(-positions // max(1, min(3, positions // _STRIP + 1)))
    inner, squares = [], ([], [])
    for start in range(0, max(positions, 1), max(height, 1)):
        end = min(start + height, positions)
        strips = [torch.bmm(x[:, start:end], x[:, :end].transpose(1, 2)).mul_(s) for x, s in zip((a, g), scales, strict=True)]
        for columns, times in ((slice(start, end), 1.0), (slice(0, start), 2.0)):
            if columns.start == columns.stop and positions:
                continue
            one, other = (strip[:, :, columns] for strip in strips)
            inner.append((one * other).sum(dim=(1, 2)) * times)
            for of, found in zip((one, other), squares, strict=True):
                found.append(torch.linalg.vector_norm(of, dim=(1, 2)).square() * times)
    return _added(inner), [_added(found) for found in squares]


def _added(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(dim=0)
