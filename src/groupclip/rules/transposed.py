"""``conv_transpose1d``, ``2d``, ``3d``: a convolution backwards, so its kernel's gradient is a convolution's, roles swapped.

``conv_transpose(x, W)`` is the input gradient of the convolution by W. So W's gradient is that of this convolution if its
input were the gradient g of the result, and its output gradient were x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import RULES, Rule
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.convolution import Convolution, Geometry
from .convolution import bias_gradients, each, images
from .shapes import autocast_to


def _rule(function: Any, dims: int) -> Rule:
    def rule(
        call: Call, input: Any, weight: Any, bias: Any = None, stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Tensor:  # fmt: skip
        """Take ``input [N, C, *pixels]``, ``weight [C, p/n, *kernel]``, ``bias [p]``."""
        if call.holds(weight) or call.holds(bias):
            raise NotSplit
        x = autocast_to(images(call.samples(input), dims))  # [size, K, C, *pixels]
        steps, zeros, more, gaps = (each(v, dims) for v in (stride, padding, output_padding, dilation))
        out = function(x.flatten(0, 1), call.value(weight), call.value(bias), steps, zeros, more, groups, gaps)
        shape, weighted, biased = x.shape[:2], call.is_private(weight), call.is_private(bias)
        geometry = Geometry(tuple(weight.shape[2:]), steps, zeros, gaps, groups)

        def book(saved: Any, grads: Any) -> list[PerSample]:
            g = grads[0].unflatten(0, shape)
            booked: list[PerSample] = []
            if weighted:
                read, backwards = _without_excess(g, geometry, more)
                booked.append(Convolution(read, saved[0], backwards))
            if biased:
                booked.append(bias_gradients(g))
            return booked

        out = call.tap([out], [x] if weighted else [], [weight] * weighted + [bias] * biased, book)[0]
        return out.unflatten(0, shape) if input.dim() == dims + 2 else out

    return rule


def _without_excess(g: Tensor, geometry: Geometry, more: tuple[int, ...]) -> tuple[Tensor, Geometry]:
    """Return ``g [B, K, p, *out]`` as the convolution reads it, and how.

    An output padding below the stride is less than a step, and no position of the kernel reaches it. One above (it may be,
    where the dilation is larger) would give the convolution more positions than x has pixels: then the zero padding is done
    here, less by what is too much.
    """
    if all(extra < step for extra, step in zip(more, geometry.stride, strict=True)):
        return g, geometry
    sides = [q for p, extra in zip(reversed(geometry.padding), reversed(more), strict=True) for q in (p, p - extra)]
    bare = Geometry(geometry.kernel, geometry.stride, (0,) * len(more), geometry.dilation, geometry.groups)
    return F.pad(g, sides), bare


for _dims, _function in enumerate((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), start=1):
    RULES[_function] = _rule(_function, _dims)
