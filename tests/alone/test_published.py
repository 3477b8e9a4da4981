"""What a forward pass keeps of its samples in a buffer would be published with the weights, without noise."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from check_attached import plan
from groupclip.errors import PrivacyViolation


class Keeps(nn.Module):
    """A linear layer that does something with a buffer in every pass."""

    def __init__(
        self, keep: Callable[[Tensor, Tensor], Tensor], *, persistent: bool = True, in_place: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.keep, self.in_place = nn.Linear(6, 3), keep, in_place
        self.register_buffer("kept", torch.zeros(6), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = self.keep(self.kept, x.detach())
            if self.in_place:
                self.kept.copy_(new)
            else:
                self.kept = new
        return self.layer(x)


def largest(kept: Tensor, x: Tensor) -> Tensor:
    return torch.maximum(kept, x.amax(0))


def last(kept: Tensor, x: Tensor) -> Tensor:
    return x[-1]


def count(kept: Tensor, x: Tensor) -> Tensor:
    return kept + 1


def nothing(kept: Tensor, x: Tensor) -> Tensor:
    return torch.full((6,), torch.nan)


def drawn(kept: Tensor, x: Tensor) -> Tensor:
    return torch.rand(6)


def step(model: nn.Module, mechanism: gc.Mechanism | None) -> None:
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", mechanism)
    try:
        x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
        engine.backward(F.cross_entropy(model(x), y, reduction="none"))
    finally:
        engine.detach()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("keep", [largest, last])
def test_a_buffer_filled_from_samples_is_refused_by_name(keep: Callable[..., Tensor], in_place: bool) -> None:
    model = nn.Sequential(nn.Identity(), Keeps(keep, in_place=in_place))
    with pytest.raises(PrivacyViolation, match=r"fills the buffer '1\.kept' with values that depend.*persistent=False"):
        step(model, plan())
    assert not model[1].kept.any()  # pyright: ignore
    step(model, None)  # clipping alone promises nothing
    model.eval()
    step(model, plan())


@pytest.mark.parametrize("keep", [count, nothing])
def test_buffers_that_know_nothing_of_samples_are_free(keep: Callable[..., Tensor]) -> None:
    step(Keeps(keep), plan())
    step(Keeps(keep, in_place=True), plan())


def test_a_buffer_of_random_numbers_is_refused_too() -> None:
    """Every sample draws its own, so which of them is published would be a sample's doing."""
    with pytest.raises(PrivacyViolation, match=r"fills the buffer 'kept' with values that depend"):
        step(Keeps(drawn), plan())


def test_a_cache_that_is_not_published_is_free() -> None:
    step(Keeps(last, persistent=False), plan())


def test_torchs_own_observer() -> None:
    from torch.ao.quantization import MovingAverageMinMaxObserver

    with pytest.raises(PrivacyViolation, match=r"buffer '0\.(min|max)_val'"):
        step(nn.Sequential(MovingAverageMinMaxObserver(), nn.Linear(6, 3)), plan())


def through_data(held: Tensor, new: Tensor) -> None:
    held.data.copy_(new)


def set_data(held: Tensor, new: Tensor) -> None:
    held.data = new.clone()


def in_place(held: Tensor, new: Tensor) -> None:
    with torch.no_grad():
        held.copy_(new)


def by_index(held: Tensor, new: Tensor) -> None:
    held.data[:] = new


def by_operator(held: Tensor, new: Tensor) -> None:
    held.data += new - held.data


def by_out(held: Tensor, new: Tensor) -> None:
    torch.add(new, 0, out=held.data)


def at_once(held: Tensor, new: Tensor) -> None:
    torch._foreach_copy_([held.data], [new])


def by_operation(held: Tensor, new: Tensor) -> None:
    torch.ops.aten.copy_.default(held.data, new)


WRITES = [through_data, set_data, in_place, by_index, by_operator, by_out, at_once, by_operation]


class Writes(nn.Module):
    """Writes into a buffer, a frozen weight or a trainable one: of the samples, or of the weights alone."""

    def __init__(self, where: str, write: Callable[[Tensor, Tensor], None], *, of_samples: bool) -> None:
        super().__init__()
        self.layer, self.where, self.write, self.of_samples = nn.Linear(6, 3), where, write, of_samples
        self.register_buffer("buffer", torch.zeros(3, 6))
        self.frozen = nn.Parameter(torch.zeros(3, 6), requires_grad=False)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        held = self.layer.weight if self.where == "layer.weight" else getattr(self, self.where)
        own = self.layer.weight.detach() if self.where != "layer.weight" else torch.full((3, 6), 0.5)
        self.write(held, x.detach()[-1].expand(3, 6) if self.of_samples else 0.9 * held.detach() + 0.1 * own)
        return self.layer(x)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("where", ["buffer", "frozen", "layer.weight"])
def test_whatever_is_published_and_filled_from_samples_is_refused(where: str, write: Callable[..., None]) -> None:
    model = Writes(where, write, of_samples=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PrivacyViolation, match=rf"fills the (buffer|weight) '{where}' with values that depend"):
        step(model, plan())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("where", ["buffer", "frozen"])
def test_an_average_of_the_weights_moves_once_a_pass(where: str, write: Callable[..., None]) -> None:
    model = Writes(where, write, of_samples=False)
    memory = getattr(model, where).data_ptr()
    step(model, plan())
    torch.testing.assert_close(getattr(model, where).detach(), 0.1 * model.layer.weight.detach())
    assert write is set_data or getattr(model, where).data_ptr() == memory


@pytest.mark.parametrize("write", [through_data, set_data])
def test_weights_that_the_pass_itself_moves_are_moved_once(write: Callable[..., None]) -> None:
    model = Writes("layer.weight", write, of_samples=False)
    expected = 0.9 * model.layer.weight.detach() + 0.05
    step(model, plan())
    torch.testing.assert_close(model.layer.weight.detach(), expected)


def test_a_weight_that_others_than_torch_average_is_free() -> None:
    """What a kernel of the user's writes isn't seen, and not put back: no reason to take it for a function of the samples."""

    def kernel(held: Tensor, new: Tensor) -> None:
        held.detach().numpy()[:] = new.numpy()
        torch.autograd.graph.increment_version(held)

    model = Writes("frozen", kernel, of_samples=False)
    step(model, plan())
    assert model.frozen.any()


def test_views_of_one_memory_are_put_back() -> None:
    """Two weights that lie in one piece of memory, of which a pass writes the whole."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = torch.zeros(12)
            self.a, self.b = (nn.Parameter(part, requires_grad=False) for part in self.flat.split(6))
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.flat.add_(1)
            return self.layer(x + self.a + self.b)

    model = Flat()
    step(model, plan())
    assert (model.a == 1).all() and (model.b == 1).all()


def test_buffers_of_inference_mode() -> None:
    model = Keeps(nothing)
    with torch.inference_mode():
        model.register_buffer("table", torch.ones(3))
    step(model, plan())
