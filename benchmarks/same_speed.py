"""The paper's figure "same speed": every style of groups, and Opacus, over plain training; prints a table or JSON.

    python benchmarks/same_speed.py --model vit-small --size 224 --batch 4 --rounds 5

Opacus (pip install 'groupclip[dev]') clips over all layers, in two ways: per-sample gradients in memory, and ghost clipping with
two backward passes (Li et al. 2021; ``GradSampleModuleFastGradientClipping``). Class token and positions are frozen for all ways,
as Opacus knows layers alone. Clipping is Abadi's with R = 1 for all, so that the gradients can be compared: ``clipped_sums``
gives them, and tests hold Opacus's against groupclip's. Nothing is stepped and no noise is added.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.nn import CrossEntropyLoss
from torch.nn import functional as F

import groupclip as gc
from groupclip.memory.live import Live
from groupclip.models import build_model
from groupclip.paper.bench import PLAIN, Timing, clock_on, interleaved, timing, waiting
from groupclip.run.environment import environment

STYLES = ("all-layer", "uniform:2", "uniform:3", "uniform:4", "uniform:6", "layer-wise", "param-wise")
PER_SAMPLE, GHOST = "Opacus, per-sample gradients", "Opacus, ghost clipping"
Pass = Callable[[], None]  # leaves the (clipped) sum in p.grad


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Pass:
    return lambda: F.cross_entropy(model(x), y, reduction="none").sum().backward()


def grouped(model: nn.Module, x: Tensor, y: Tensor, style: str) -> Pass:
    engine = gc.attach(model, None, gc.partition(model, style), None, clip="abadi", thresholds=1.0)
    return lambda: engine.backward(F.cross_entropy(model(x), y, reduction="none"))


def per_sample(model: nn.Module, x: Tensor, y: Tensor) -> Pass:
    """Opacus's ordinary way: every gradient of every sample, then norms, then the clipped sum."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model, loss_reduction="sum")
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=0.0), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=len(y),
        loss_reduction="sum",
    )  # fmt: skip

    def run() -> None:
        F.cross_entropy(wrapped(x), y, reduction="sum").backward()
        optimizer.clip_and_accumulate()
        for p in parameters:
            p.grad, p.grad_sample, p.summed_grad = p.summed_grad, None, None  # type: ignore[attr-defined]

    return run


def ghost(model: nn.Module, x: Tensor, y: Tensor) -> Pass:
    """Opacus's ghost clipping: norms in a first backward pass, the clipped sum in a second."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0), noise_multiplier=0.0, max_grad_norm=1.0,
        expected_batch_size=len(y), loss_reduction="sum",
    )  # fmt: skip
    criterion = DPLossFastGradientClipping(wrapped, optimizer, CrossEntropyLoss(reduction="sum"), loss_reduction="sum")
    return lambda: criterion(wrapped(x), y).backward()


def ways(styles: tuple[str, ...] = STYLES) -> dict[str, Callable[[nn.Module, Tensor, Tensor], Pass]]:
    """Name -> what prepares a pass over a model of its own."""
    ours = {style: (lambda model, x, y, style=style: grouped(model, x, y, style)) for style in styles}
    return {PLAIN: plain, **ours, PER_SAMPLE: per_sample, GHOST: ghost}


def clipped_sums(
    way: Callable[[nn.Module, Tensor, Tensor], Pass], model: nn.Module, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Parameter name -> what one pass leaves in ``p.grad``, on a copy of the model."""
    own = copy.deepcopy(model)
    way(own, x, y)()
    return {name: p.grad.clone() for name, p in own.named_parameters() if p.grad is not None}


def measured(model: nn.Module, x: Tensor, y: Tensor, rounds: int, styles: tuple[str, ...] = STYLES) -> list[Timing]:
    """Every way in turns; peak of live bytes beside parameters, of a pass after the first."""
    passes, peaks, groups = {}, {}, {}
    for name, way in ways(styles).items():
        own = copy.deepcopy(model)
        run = cleared(way(own, x, y), own)
        run()
        with Live([*own.parameters(), x, y]) as live:
            run()
        passes[name], peaks[name] = waiting(run, x.device), live.peak
        groups[name] = 0 if name == PLAIN else len(gc.partition(model, name)) if name in styles else 1
    times = interleaved(passes, rounds, clock_on(x.device))
    return [timing(name, groups[name], times, len(y), peaks[name]) for name in passes]


def cleared(run: Pass, model: nn.Module) -> Pass:
    def pass_and_clear() -> None:
        run()
        with torch._C.DisableTorchFunctionSubclass():
            for p in model.parameters():
                p.grad = None

    return pass_and_clear


def net(name: str, size: int) -> nn.Module:
    """A ViT with random weights, class token and positions frozen."""
    model = build_model(name, input_shape=(3, size, size), num_classes=100, seed=0)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.1)
    for parameter in ("cls_token", "pos_embed"):
        model.get_parameter(parameter).requires_grad_(False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit-small")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    device = torch.device(given.device)
    torch.manual_seed(0)
    x = torch.randn(given.batch, 3, given.size, given.size, device=device)
    y = torch.randint(100, (given.batch,), device=device)
    rows = measured(net(given.model, given.size).to(device), x, y, given.rounds)
    if given.json:
        print(
            json.dumps(
                {"setting": vars(given), "environment": environment(device), "ways": [asdict(r) for r in rows]},
                indent=2,
            )
        )
        return
    for r in rows:
        print(
            f"{r.style:>30} {r.groups or '':>4} {r.ratio:>7.3f} ({r.least:.3f}-{r.most:.3f}) {r.peak_bytes / 1e6:>10,.1f} MB"
        )


if __name__ == "__main__":
    main()
