"""The benchmark against Opacus compares equal work: its ways give the same clipped sums as groupclip over all layers."""

import pytest
import torch

from benchmark import benchmark

pytest.importorskip("opacus")


@pytest.mark.filterwarnings("ignore")  # of Opacus and torch hooks, which aren't under test here
def test_opacus_clips_the_same_sums():
    made = benchmark("same_speed")
    torch.manual_seed(0)
    model = made.net("vit-micro", 16).double()
    x, y = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.randint(100, (4,))
    every = made.ways(("all-layer", "layer-wise"))
    ours = made.clipped_sums(every["all-layer"], model, x, y)
    assert len(ours) == sum(p.requires_grad for p in model.parameters())
    for way in (made.PER_SAMPLE, made.GHOST):
        theirs = made.clipped_sums(every[way], model, x, y)
        for name, mine in ours.items():
            # Opacus adds 1e-6 to each norm before it divides
            torch.testing.assert_close(theirs[name], mine, rtol=1e-5, atol=1e-8)
    # the twins: neither plain sums nor those of another grouping are these
    for way in (made.PLAIN, "layer-wise"):
        other = made.clipped_sums(every[way], model, x, y)
        assert not all(torch.allclose(other[name], mine, rtol=1e-3) for name, mine in ours.items())
    rows = made.measured(model.float(), x.float(), y, 1, ("layer-wise",))
    assert [r.style for r in rows] == [made.PLAIN, "layer-wise", made.PER_SAMPLE, made.GHOST] and rows[0].ratio == 1
