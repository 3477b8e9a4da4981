"""Every form of per-sample gradients keeps its contract: norms, weighted sums and selections are those of the
gradients themselves, which are worked out here one sample and one position at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from groupclip.persample.base import PerSample
from groupclip.persample.combine import combine
from groupclip.persample.convolution import Convolution, Geometry
from groupclip.persample.dense import Dense
from groupclip.persample.lookup import Lookup, Tied
from groupclip.persample.norms import METHODS
from groupclip.persample.outer import Outer
from groupclip.persample.pulled import Pulled, Row

B, T, V = 4, 3, 5
Made = tuple[PerSample, Tensor]  # the form, and the gradients [B, *shape]
GENERATOR = torch.Generator()


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


def outer(a: Tensor, g: Tensor) -> Tensor:
    """[B, p, d]: the sum over positions of g a^T."""
    total = torch.zeros(len(a), g.shape[2], a.shape[2], dtype=a.dtype)
    for t in range(a.shape[1]):
        total += g[:, t, :, None] * a[:, t, None, :]
    return total


def looked_up(ids: Tensor, g: Tensor, rows: int) -> Tensor:
    tables = torch.zeros(len(ids), rows, g.shape[-1], dtype=g.dtype)
    for i in range(len(ids)):
        for t in range(ids.shape[1]):
            tables[i, ids[i, t]] += g[i, t]
    return tables


def dense() -> Made:
    gradients = randn(B, 3, 2)
    return Dense(gradients), gradients


def dense_scalar() -> Made:
    gradients = randn(B)
    return Dense(gradients), gradients


def outer_form(positions: int, inputs: int, outputs: int, inputs_first: bool = False) -> Made:
    a, g = randn(B, positions, inputs), randn(B, positions, outputs)
    gradients = outer(a, g)
    return Outer(a, g, inputs_first), gradients.mT if inputs_first else gradients


def lookup() -> Made:
    ids, g = (
        torch.randint(3, (B, T), generator=GENERATOR),
        randn(B, T, 2),
    )  # of 5 rows: some twice, some never
    return Lookup(ids, g, V), looked_up(ids, g, V)


def tied(inputs_first: bool = False) -> Made:
    ids, up = torch.randint(V, (B, T), generator=GENERATOR), randn(B, T, 2)
    a, g = randn(B, T, 2), randn(B, T, V)
    linear = Outer(g, a, True) if inputs_first else Outer(a, g)
    return Tied(Lookup(ids, up, V), linear), looked_up(ids, up, V) + outer(a, g)


def convolution(groups: int = 1, images: int = 1) -> Made:
    geometry = Geometry((3, 2), (2, 1), (1, 0), (1, 2), groups)
    x = randn(B, images, 4, 7, 6)
    kernel = randn(6, 4 // groups, 3, 2).requires_grad_()
    g = randn(B, images, *F.conv2d(x[0], kernel, None, (2, 1), (1, 0), (1, 2), groups).shape[1:])
    gradients = []
    for i in range(B):
        out = F.conv2d(x[i], kernel, None, (2, 1), (1, 0), (1, 2), groups)
        gradients.append(torch.autograd.grad(out, kernel, g[i])[0])
    return Convolution(x, g, geometry), torch.stack(gradients)


def pulled(isometric: bool) -> Made:
    leaf = randn(4, 3).requires_grad_()
    derived = leaf.t() if isometric else torch.tanh(leaf[1:]) @ leaf.t()
    upstream = randn(B, *derived.shape)
    gradients = [torch.autograd.grad(derived, leaf, u, retain_graph=True)[0] for u in upstream]
    return Pulled(Dense(upstream), derived, leaf, isometric), torch.stack(gradients)


def pulled_not_used() -> Made:
    """Derived from the leaf in name only."""
    leaf = randn(4, 3).requires_grad_()
    derived = randn(2, 2).requires_grad_() * 2
    return Pulled(Dense(randn(B, 2, 2)), derived, leaf, False), torch.zeros(B, 4, 3, dtype=torch.float64)


def parts(*cuts: Callable[[Tensor], Tensor]) -> Callable[[], Made]:
    """Several parts of one [5, 2], each used by a layer; the whole is a part too."""

    def make() -> Made:
        leaf = randn(5, 2).requires_grad_()
        uses, total = [], torch.zeros(B, 5, 2, dtype=torch.float64)
        for cut in cuts:
            derived = cut(leaf)
            a, g = randn(B, T, derived.shape[1]), randn(B, T, derived.shape[0])
            uses.append(Pulled(Outer(a, g), derived, leaf, True))
            for i, one in enumerate(outer(a, g)):
                total[i] += torch.autograd.grad(derived, leaf, one, retain_graph=True)[0]
        return combine(uses), total

    return make


def row() -> Made:
    rows, index = randn(B, 3), torch.tensor([2, 0, 5, 1])
    gradients = torch.zeros(B, 6, 3, dtype=torch.float64)
    for i in range(B):
        gradients[i, index[i]] = rows[i]
    return Row(rows, index, 6), gradients


def several_uses(*makers: Callable[[], Made]) -> Callable[[], Made]:
    def make() -> Made:
        made = [maker() for maker in makers]
        return combine([form for form, _ in made]), sum(gradients for _, gradients in made)  # pyright: ignore

    return make


FORMS: dict[str, Callable[[], Made]] = {
    "dense": dense,
    "dense scalar": dense_scalar,
    "outer": lambda: outer_form(T, 4, 5),
    "outer wide": lambda: outer_form(T, 5, 4),
    "outer one position": lambda: outer_form(1, 4, 5),
    "outer inputs first": lambda: outer_form(T, 4, 5, True),
    "outer inputs first one position": lambda: outer_form(1, 4, 5, True),
    "outer no positions": lambda: outer_form(0, 4, 5),
    "lookup": lookup,
    "tied": tied,
    "tied inputs first": lambda: tied(True),
    "convolution": convolution,
    "convolution grouped": lambda: convolution(groups=2),
    "convolution images": lambda: convolution(groups=2, images=3),
    "pulled isometric": lambda: pulled(True),
    "pulled": lambda: pulled(False),
    "pulled not used": pulled_not_used,
    "row": row,
    "two outers": several_uses(lambda: outer_form(T, 2, V), lambda: outer_form(1, 2, V)),
    "outer and its transpose": several_uses(lambda: outer_form(T, 2, V), lambda: outer_form(2, V, 2, True)),
    "two lookups": several_uses(lookup, lookup),
    "lookups and outers": several_uses(lookup, lambda: outer_form(2, 2, V), lookup, lambda: outer_form(T, V, 2, True)),
    "outer and dense": several_uses(lambda: outer_form(T, 2, 3), lambda: (d := dense()) and (Dense(d[1]), d[1])),
    "parts apart": parts(lambda w: w[:2], lambda w: w[3:], lambda w: w[2:3].t()),
    "parts apart, one twice": parts(lambda w: w[:2], lambda w: w[2:], lambda w: w[:2]),
    "columns apart": parts(lambda w: w[:, :1], lambda w: w[:, 1:]),
    "parts that overlap": parts(lambda w: w[:3], lambda w: w[2:]),
    "a row and a column": parts(lambda w: w[1:2], lambda w: w[:, 1:]),
    "one part": parts(lambda w: w[1:4]),
    "one part twice": parts(lambda w: w[1:4], lambda w: w[1:4]),
    "the whole and its transpose": parts(lambda w: w.view(5, 2), lambda w: w.t()),
    "a part and the whole": parts(lambda w: w[:2], lambda w: w.view(5, 2)),
    "a part and its transpose": parts(lambda w: w[:3], lambda w: w[:3].t()),
    "two convolutions": several_uses(convolution, convolution),
}


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    GENERATOR.manual_seed(11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", FORMS)
def test_norms_sums_and_gradients(form: str, method: str) -> None:
    samples, gradients = FORMS[form]()
    settled = samples.settle(method)
    squares = gradients.reshape(B, -1).square().sum(1)
    factors = torch.tensor([0.5, 0.0, 2.0, 1.0], dtype=torch.float64)
    for kept in (samples, settled):
        assert kept.num_samples == B
        torch.testing.assert_close(kept.square_norms(), squares, rtol=1e-12, atol=1e-14)
        total = kept.weighted_sum(factors).reshape(gradients.shape[1:])
        torch.testing.assert_close(total, torch.tensordot(factors, gradients, 1), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(kept.instantiate().reshape(gradients.shape), gradients, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(kept.square_norms(), squares, rtol=1e-12, atol=1e-14)  # asked twice


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", FORMS)
def test_a_selection_is_those_samples(form: str, method: str) -> None:
    samples, gradients = FORMS[form]()
    for kept in (samples, samples.settle(method)):
        for chosen in ([2, 0], [3], []):
            index = torch.tensor(chosen, dtype=torch.long)
            some = kept.select(index)
            assert some.num_samples == len(chosen)
            factors = torch.arange(1.0, len(chosen) + 1, dtype=torch.float64)
            want = torch.tensordot(factors, gradients[index], 1)
            torch.testing.assert_close(some.weighted_sum(factors).reshape(want.shape), want, rtol=1e-12, atol=1e-13)
            if chosen:
                squares = gradients[index].reshape(len(chosen), -1).square().sum(1)
                torch.testing.assert_close(some.square_norms(), squares, rtol=1e-12, atol=1e-14)


def test_weighing_leaves_the_kept_tensors_alone() -> None:
    """g may be the gradient of a residual branch elsewhere: never scaled in place."""
    for wide in (4, 9):
        a, g = randn(B, T, wide), randn(B, T, 6)
        before = a.clone(), g.clone()
        Outer(a, g).weighted_sum(torch.full((B,), 7.0))
        assert torch.equal(a, before[0]) and torch.equal(g, before[1])


# ------------------------------------------------------------------ float32, where terms cancel


# The gradient itself is formed in float32 then, with an error of 1e-7 of its terms.
LEFT_OVER = [(1e-1, 3e-5), (1e-2, 1e-4), (1e-3, 1e-3), (1e-5, 3e-2)]


def relative_error(samples: PerSample, gradients: Tensor) -> float:
    exact = gradients.double().reshape(len(gradients), -1).square().sum(1)
    return ((samples.square_norms().double() - exact) / exact).abs().max().item()


@pytest.mark.parametrize(("left_over", "tolerance"), LEFT_OVER)
def test_gram_norms_of_gradients_that_nearly_cancel(left_over: float, tolerance: float) -> None:
    """Each position is followed by its opposite, but for a remainder: a norm far smaller than its terms."""
    a = torch.randn(B, 8, 16, generator=GENERATOR)
    g = torch.randn(B, 8, 12, generator=GENERATOR)
    a2, g2 = torch.cat([a, a * (1 - left_over)], 1), torch.cat([g, -g], 1)
    assert relative_error(Outer(a2, g2), outer(a2.double(), g2.double())) < tolerance


@pytest.mark.parametrize(("left_over", "tolerance"), LEFT_OVER)
def test_convolution_norms_of_gradients_that_nearly_cancel(left_over: float, tolerance: float) -> None:
    x = torch.randn(B, 1, 2, 6, 6, generator=GENERATOR)
    g = torch.randn(B, 1, 3, 4, 4, generator=GENERATOR)
    x2, g2 = torch.cat([x, x * (1 - left_over)], 1), torch.cat([g, -g], 1)
    form = Convolution(x2, g2, Geometry((3, 3), (1, 1), (0, 0), (1, 1), 1))
    exact = Convolution(x2.double(), g2.double(), form.geometry).instantiate()
    assert relative_error(form, exact) < tolerance


def test_convolution_norms_where_one_group_of_channels_cancels() -> None:
    """Judged group by group: the Gram form of a group that cancels says little, whatever the other groups do."""
    x, g = torch.randn(2, 1, 4, 6, generator=GENERATOR), torch.randn(2, 1, 4, 4, generator=GENERATOR)
    x, g = torch.cat([x, x], 1), torch.cat([g, g], 1)
    g[0, 1, :2] *= -1 + 1e-5  # the first group of the first sample
    g[0, :, 2:] *= 1e-5  # and the second group is no larger
    form = Convolution(x, g, Geometry((3,), (1,), (0,), (1,), 2))
    exact = Convolution(x.double(), g.double(), form.geometry).instantiate()
    assert relative_error(form, exact) < 3e-2


@pytest.mark.parametrize(("left_over", "tolerance"), LEFT_OVER)
def test_tied_norms_where_lookup_and_head_nearly_cancel(left_over: float, tolerance: float) -> None:
    """The lookup's gradient undoes the head's: the cross term eats up the squares."""
    ids = torch.stack([torch.randperm(V, generator=GENERATOR) for _ in range(B)])
    a, g = torch.randn(B, 1, 6, generator=GENERATOR), torch.randn(B, 1, V, generator=GENERATOR)
    head = outer(a, g)  # [B, V, 6]
    undo = -(1 - left_over) * torch.stack([head[i][ids[i]] for i in range(B)])
    form = Tied(Lookup(ids, undo, V), Outer(a, g))
    exact = looked_up(ids, undo.double(), V) + outer(a.double(), g.double())
    assert (form.square_norms() >= 0).all()
    assert relative_error(form, exact) < tolerance


def test_twin_a_wrong_norm_is_seen() -> None:
    """Norms of the uses added up as if they were orthogonal: the fault that joins exist for."""
    uses = [outer_form(T, 4, 5), outer_form(T, 4, 5)]
    apart = sum(form.square_norms() for form, _ in uses)
    together = sum(gradients for _, gradients in uses)
    joined = combine([form for form, _ in uses])
    assert relative_error(joined, together) < 1e-12  # pyright: ignore
    assert ((apart - joined.square_norms()).abs() / joined.square_norms()).max() > 0.05  # pyright: ignore
