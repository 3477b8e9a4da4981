"""Rows of samples of unequal length, one after another in one tensor: whose row each is, and its place in a padded batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..call import Call, NotSplit
from ..layout import Axis


@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows of B samples.

    Attributes:
        owner: ``[N]`` the sample of each row; place: ``[N]`` which of its sample's rows it is.
        batch: B; longest: how many rows the sample with most of them has.
    """

    owner: Tensor
    place: Tensor
    batch: int
    longest: int

    def padded(self, rows: Tensor) -> Tensor:
        """``[N, ..]`` to ``[B, T, ..]``, zero where a sample has no row."""
        out = rows.new_zeros(self.batch, self.longest, *rows.shape[1:])
        return out.index_put((self.owner, self.place), rows)

    def check(self, call: Call, rows: Tensor, place: int) -> None:
        """That ``owner`` is right: learnt, as for any other tensor, by changing a sample and looking whose rows change.

        A summary of each sample's rows is looked at, for two batches may differ in length.

        Raises:
            NotSplit: it isn't, or nothing is known yet.
        """
        with torch.no_grad():
            values = rows.detach().double().reshape(len(rows), -1)
            marks = torch.stack([torch.ones_like(values[:, 0]), torch.cos(1.0 + self.place)], 1)
            weighed = (values * torch.cos(1.0 + self.place)[:, None]).cos()
            summary = rows.new_zeros(self.batch, 2 + values.shape[1], dtype=torch.float64)
            summary.index_add_(0, self.owner, torch.cat([marks, weighed], 1))
        # Samples in dimension 1: what no lesson has shown is never taken for a batch in this shape.
        axis = call.axis(summary.unsqueeze(0), place)
        if axis is not Axis.SECOND and call.batch != 1:
            raise NotSplit
