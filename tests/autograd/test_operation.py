"""One operation with private operands: of one engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from check_attached import Holder, attached
from groupclip.errors import CoverageError


def test_models_of_two_engines_in_one_operation() -> None:
    first, _, _ = attached(Holder(nn.Parameter(torch.ones(5))))
    second, _, _ = attached(Holder(nn.Parameter(torch.ones(5))))
    first.forward = lambda x: x * (first.weight + second.weight)  # type: ignore[method-assign, operator]
    with pytest.raises(
        CoverageError, match="uses parameters of models attached to different engines: attach one model"
    ):
        first(torch.randn(4, 5))
