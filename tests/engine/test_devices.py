"""Models whose layers lie on several devices: groups are within a device; the hooks of a ``device_map`` run as they are.

There is one device with numbers here, the CPU. Layers on ``meta`` stand for those of another device where nothing is computed.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from groupclip.errors import UnsupportedOperation
from oracle import clipped_sum

PLAN = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=4, noise_multiplier=3.0)


def spread() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, device="meta"))


@pytest.mark.parametrize("style", ["all-layer", "uniform:1", "type-wise", {"*": "one"}])
def test_a_group_on_several_devices_is_refused(style: object) -> None:
    model = spread()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedOperation, match=r"on several devices \(cpu, meta\).*per-device"):
        gc.attach(model, optimizer, style, PLAN)
    assert all(type(p) is nn.Parameter for p in model.parameters())


@pytest.mark.parametrize("style", ["per-device", "layer-wise", "param-wise"])
def test_groups_within_devices_are_attached(style: str) -> None:
    model = spread()
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), style, PLAN)
    if style == "per-device":
        assert engine.partition.groups == (("cpu", ("0.weight", "0.bias")), ("meta", ("2.weight", "2.bias")))
        assert engine.noise_stds == pytest.approx({"cpu": 3.0, "meta": 3.0})  # sigma ||(R_1, R_2)||, R_m = 1 / sqrt(2)
    engine.detach()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("style", ["per-device", "layer-wise", "all-layer"])
def test_the_hooks_of_a_device_map(style: str) -> None:
    """accelerate moves inputs to where each module's weights are, in hooks around the modules' calls."""
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model, x = Net().double(), torch.randn(7, 4, dtype=torch.float64)
    groups = gc.partition(model, style)
    want = clipped_sum(model, losses, (x,), {name: list(groups[name]) for name in groups.names}).sums
    spread_out = accelerate.dispatch_model(model, {"first": "cpu", "second": "cpu", "head": "cpu"}, force_hooks=True)
    assert all(hasattr(module, "_hf_hook") for module in (model.first, model.second, model.head))
    engine = gc.attach(spread_out, None, style, None)
    engine.backward(losses(spread_out, (x,)))
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad.as_subclass(Tensor), want[name], rtol=1e-12, atol=1e-12)
    engine.detach()


def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model(batch[0]).square().sum(1)
