"""Tiny models on which what isn't arithmetic weighs most, and whole steps of every way to train them.

A step is forward, backward, clipping, noise, ``SGD.step`` and ``zero_grad``. Each way steps its own copy of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from bare import bare
from torch import Tensor, nn

import groupclip as gc
from groupclip.models import build_model

PLAIN = "plain"
OURS = {f"groupclip, {style}": style for style in ("all-layer", "block-wise", "layer-wise")}
HOOKS, GHOST = "Opacus, hooks", "Opacus, ghost clipping"
BARE = "the bare arithmetic, nothing proven"
WAYS = (PLAIN, *OURS, HOOKS, GHOST, BARE)
OVER_ALL_LAYERS = ("groupclip, all-layer", HOOKS, GHOST)
LOOP = "a plain loop over samples"
CLASSES = 2
Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """name: as the page shows it. model: in training mode. inputs: of one batch, rows are samples. labels: ``[B]``."""

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    labels: Tensor

    def logits(self, model: nn.Module) -> Tensor:
        """``[B, CLASSES]`` of ``model``, a copy of the case's or a wrapper of one."""
        found = model(*self.inputs)
        return found if isinstance(found, Tensor) else found.logits

    def losses(self, model: nn.Module) -> Tensor:
        return F.cross_entropy(self.logits(model), self.labels, reduction="none")

    def trainable(self) -> int:
        """The number of trainable parameters: of tensors, not of numbers in them."""
        return sum(p.requires_grad for p in self.model.parameters())


def labels(samples: int) -> Tensor:
    return torch.arange(samples) % CLASSES


def roberta(
    name: str = "RoBERTa of 2 layers of 64, B=4, T=16", samples: int = 4, padded: str = "none", width: int = 64, layers: int = 2
) -> Case:
    """A classifier with random weights. padded: ``none``, ``every`` sample has padding, or ``some`` (every other one)."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=100, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * width,
        max_position_embeddings=40, num_labels=CLASSES,
    )  # fmt: skip
    ids = torch.randint(5, 100, (samples, 16))
    mask = torch.ones_like(ids)
    rows = {"none": slice(0), "every": slice(None), "some": slice(None, None, 2)}[padded]
    mask[rows, -4:] = 0
    ids[rows, -4:] = config.pad_token_id
    return Case(name, RobertaForSequenceClassification(config).train(), (ids, mask), labels(samples))


def lora() -> Case:
    from peft import LoraConfig, TaskType, get_peft_model

    case = roberta("the same RoBERTa with LoRA, r=4")
    adapted = get_peft_model(case.model, LoraConfig(task_type=TaskType.SEQ_CLS, r=4))  # pyright: ignore[reportArgumentType]
    return Case(case.name, adapted.train(), case.inputs, case.labels)


def mlp() -> Case:
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    return Case("MLP of 3 layers of 32, B=16", net, (torch.randn(16, 32),), labels(16))


def cnn() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, CLASSES),
    )  # fmt: skip
    return Case("CNN with GroupNorm, B=8, 16 px", net, (torch.randn(8, 3, 16, 16),), labels(8))


def vit(frozen: bool) -> Case:
    """frozen: class token and positions, which are parameters of no layer."""
    net = build_model("vit-micro", input_shape=(1, 8, 8), num_classes=CLASSES, seed=0)
    nn.init.normal_(net.get_parameter("head.weight"), std=0.1)
    for parameter in ("cls_token", "pos_embed"):
        net.get_parameter(parameter).requires_grad_(not frozen)
    name = "the same ViT, class token and positions frozen" if frozen else "ViT (vit-micro), B=4, 8 px"
    return Case(name, net.train(), (torch.randn(4, 1, 8, 8),), labels(4))


CASES: dict[str, Callable[[], Case]] = {
    "roberta": roberta, "mlp": mlp, "cnn": cnn, "vit": lambda: vit(False), "vit-frozen": lambda: vit(True), "lora": lora,
}  # fmt: skip


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(trainable(model), lr=1e-3)


def ended(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


class Leaves(nn.Module):
    """Six linear layers of 256 on ``[B, 32, 256]``; NumPy computes a factor, so that no level of vmap can be around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        factor = float(x.detach().numpy().std())
        return x.mean(dim=1)[:, :CLASSES] * factor


def leaves() -> Case:
    return Case("six linear layers of 256 and NumPy, B=16, T=32", Leaves(), (torch.randn(16, 32, 256),), labels(16))


def plain(model: nn.Module, case: Case, noise: float) -> Step:
    optimizer = sgd(model)

    def step() -> None:
        case.losses(model).mean().backward()
        ended(optimizer)

    return step


def grouped(model: nn.Module, case: Case, noise: float, style: str | gc.Partition) -> Step:
    optimizer = sgd(model)
    mechanism = gc.Mechanism(
        dataset_size=1000, expected_batch_size=len(case.labels), steps=100_000, noise_multiplier=noise
    )
    engine = gc.attach(model, optimizer, style, mechanism, clip="abadi", thresholds=1.0)

    def step() -> None:
        engine.backward(case.losses(model))
        ended(optimizer)

    return step


def hooks(model: nn.Module, case: Case, noise: float) -> Step:
    """Opacus's ordinary way: every gradient of every sample, then norms, then the clipped sum."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(sgd(model), noise_multiplier=noise, max_grad_norm=1.0, expected_batch_size=len(case.labels))

    def step() -> None:
        case.losses(wrapped).mean().backward()
        ended(optimizer)

    return step


def ghost(model: nn.Module, case: Case, noise: float) -> Step:
    """Opacus's ghost clipping: norms in a first backward pass, the clipped sum in a second."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        sgd(model), noise_multiplier=noise, max_grad_norm=1.0, expected_batch_size=len(case.labels)
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        criterion(case.logits(wrapped), case.labels).backward()
        ended(optimizer)

    return step


def unproven(model: nn.Module, case: Case, noise: float) -> Step:
    optimizer = sgd(model)
    return bare(model, lambda: case.losses(model), lambda: ended(optimizer), noise)


def loop(model: nn.Module, case: Case, noise: float) -> Step:
    """Per-sample clipping in its plainest form: a pass a sample, its norm, and a sum of what is clipped."""
    optimizer, parameters = sgd(model), trainable(model)

    def step() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for i in range(len(case.labels)):
            one = Case(case.name, model, tuple(x[i : i + 1] for x in case.inputs), case.labels[i : i + 1])
            grads = torch.autograd.grad(one.losses(model).sum(), parameters)
            norm = torch.stack(torch._foreach_norm(grads)).norm()
            torch._foreach_add_(total, torch._foreach_mul(grads, (1 / norm).clamp(max=1)))
        for p, summed in zip(parameters, total, strict=True):
            p.grad = summed.add_(torch.randn_like(summed), alpha=noise).div_(len(case.labels))
        ended(optimizer)

    return step


MAKERS: dict[str, Callable[[nn.Module, Case, float], Step]] = {
    PLAIN: plain,
    **{
        way: (lambda model, case, noise, style=style: grouped(model, case, noise, style))
        for way, style in OURS.items()
    },
    HOOKS: hooks, GHOST: ghost, BARE: unproven, LOOP: loop,
}  # fmt: skip


def prepared(case: Case, way: str) -> Step:
    """A step on a copy of the model. It has been made three times: what is learnt once isn't timed."""
    step = MAKERS[way](copy.deepcopy(case.model), case, 1.0)
    for _ in range(3):
        step()
    return step


def exact(case: Case, way: str) -> bool:
    """Is one step without noise and dropout, in float64, that of a loop over single samples?

    way: one that clips over all layers, as the loop does. Opacus adds 1e-6 to each norm before it divides.
    """
    model = copy.deepcopy(case.model).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    inputs = tuple(x.double() if x.is_floating_point() else x for x in case.inputs)
    double = Case(case.name, model, inputs, case.labels)
    moved = []
    for each in (way, LOOP):
        own = copy.deepcopy(model)
        MAKERS[each](own, double, 0.0)()
        with torch.no_grad():
            pairs = zip(trainable(own), trainable(model), strict=True)
            moved.append(torch.cat([(p.as_subclass(torch.Tensor) - q).flatten() for p, q in pairs]))
    return bool((moved[0] - moved[1]).norm() <= 1e-4 * moved[1].norm())
