"""Fine-tuning small vision transformers on CIFAR-10, on two CPU cores: a twin of the paper's table of image classification.

What is smaller: ViT-small and ViT-large (22M and 304M parameters, pretrained on ImageNet, images of 224 x 224) become three
transformers of 0.08M to 0.7M parameters for 32 x 32 images, pretrained here on a quarter of CIFAR-100, which is the public set;
five epochs become two fifths of one. The private records are all 50,000 training images of CIFAR-10.

A cell's seed draws the new head and nothing else: sampling and noise of a private run come from the operating system, so runs
of one seed differ too. All runs of one size start from the same pretrained weights.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...memory.passes import Sketched, optimizer_bytes
from ...models.vit import VisionTransformer, ViTShape
from ...partition.choose import partition
from ..settings import TrainSettings
from ..source import needed_files
from ..workload import Workload
from .experiment import ScaledCell, ScaledExperiment
from .vision_data import SIDE, read
from .vision_made import write_made
from .vision_pretraining import PATCH, Recipe, accuracy, pretrained, small_vit

NAME = "vision-small"
PUBLIC, PRIVATE = "cifar100_subset.npz", "cifar10.npz"
SIZES = {f"vit-{dim}": ViTShape(dim=dim, depth=6, heads=max(2, dim // 32)) for dim in (32, 64, 96)}

# What groupclip.plan(groups=3) finds for these models: the two linear layers of the last MLP apart, the head with the second.
# As exact names, which win over the pattern, so that a result says which groups it had.
PLANNED = {
    "*": "group-1",
    "blocks.5.mlp.fc1.weight": "group-2",
    "blocks.5.mlp.fc1.bias": "group-2",
    "blocks.5.mlp.fc2.weight": "group-3",
    "blocks.5.mlp.fc2.bias": "group-3",
    "norm.weight": "group-3",
    "norm.bias": "group-3",
    "head.weight": "group-3",
    "head.bias": "group-3",
}
STYLES: dict[str, str | Mapping[str, str]] = {
    "all-layer": "all-layer",
    "param-wise": "param-wise",
    "layer-wise": "layer-wise",
    "block-wise": "block-wise",
    "boundaries:5": "boundaries:5",
    "uniform:2": "uniform:2",
    "planned:3": PLANNED,
    "uniform:3": "uniform:3",
}
ENDS = ("all-layer", "param-wise")
COMPARED = ("planned:3", "layer-wise", "boundaries:5", "block-wise")
FEW = ("all-layer", "param-wise", "layer-wise", "block-wise")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Says how large the experiment is; one value for tests and one for results."""

    sizes: Mapping[str, ViTShape]
    styles: Mapping[float, Sequence[str]]  # at each epsilon
    abadi: Sequence[tuple[str, float, str]]  # (size, epsilon, style): run with Abadi's clip function as well
    seeds: Sequence[int]
    settings: TrainSettings
    recipe: Recipe


FULL = Scale(
    sizes=SIZES,
    styles={2.0: tuple(STYLES), 8.0: FEW},
    abadi=[("vit-64", 2.0, style) for style in ("all-layer", "layer-wise", "param-wise")],
    seeds=(0, 1, 2),
    settings=TrainSettings(
        epsilon=None, delta=1e-5, batch_size=1000, steps=20, microbatch=250, lr=4e-3, weight_decay=0.01
    ),
    recipe=Recipe(),
)
SMOKE = Scale(
    sizes={"vit-16": ViTShape(dim=16, depth=2, heads=2)},
    styles={8.0: ("all-layer", "param-wise")},
    abadi=(),
    seeds=(0,),
    settings=dataclasses.replace(FULL.settings, batch_size=60, steps=4, microbatch=40),
    recipe=Recipe(epochs=2, batch=50),
)


@dataclass(frozen=True)
class Folders:
    """Where the two sets of images lie, and where pretrained weights are kept."""

    data: Path
    kept: Path


def cells(scale: Scale, folders: Folders) -> list[ScaledCell]:
    """Return all runs: the whole of the first seed, then the other seeds together, what is worth most first.

    So a suite that is stopped has every cell once, and error bars on the ends of the range before those between.
    """
    first, *others = ([_cell(scale, folders, *names) for names in _names(scale, seed)] for seed in scale.seeds)
    return first + sorted((cell for seed in others for cell in seed), key=_worth)


def _names(scale: Scale, seed: int) -> Iterator[tuple[str, int, float | None, str, str]]:
    """Size, seed, epsilon, style and clip function of all runs of a seed."""
    for size in scale.sizes:
        yield size, seed, None, "", ""
    for style in STYLES:
        for epsilon, styles in scale.styles.items():
            for size in scale.sizes if style in styles else ():
                yield size, seed, epsilon, style, "automatic"
    for size, epsilon, style in scale.abadi:
        yield size, seed, epsilon, style, "abadi"


def _worth(cell: ScaledCell) -> tuple[int, int]:
    """Return one group and one a parameter; then what is compared at equal memory, at the least epsilon; then the rest."""
    style, clip = cell.cell["clipping"], cell.cell["clip"]
    if clip == "automatic" and style in ENDS:
        return 0, ENDS.index(style)
    if clip == "automatic" and style in COMPARED and cell.cell["epsilon"] == min(FULL.styles):
        return 1, COMPARED.index(style)
    return 2, 0


def _cell(
    scale: Scale, folders: Folders, size: str, seed: int, epsilon: float | None, style: str, clip: str
) -> ScaledCell:
    cell = {"model": size, "data": "cifar10", "epsilon": epsilon, "clipping": style, "clip": clip, "seed": seed}
    settings = dataclasses.replace(scale.settings, epsilon=epsilon, seed=seed)
    if epsilon is not None:
        settings = dataclasses.replace(settings, clipping=STYLES[style], clip=clip)
    return ScaledCell(
        cell=cell,
        settings=settings,
        build=functools.partial(build, scale.sizes[size], scale.recipe, settings, folders, private=PRIVATE),
    )


def build(shape: ViTShape, recipe: Recipe, settings: TrainSettings, folders: Folders, *, private: str) -> Workload:
    """Return the pretrained model with a new head, on the private images of a file."""
    needed_files(folders.data, {PUBLIC: "public images, .npz", private: "private images, .npz"})
    model, public_accuracy = _public_model(shape, recipe, folders)
    train, test = read(folders.data / private)
    model = copy.deepcopy(model)
    described: dict[str, object] = {
        "private": f"{private}: {len(train)} train and {len(test)} test images",
        "public": PUBLIC,
        "pretraining": dataclasses.asdict(recipe),
        "public_accuracy": public_accuracy,
        "patch": PATCH,
        "seed": "draws the new head alone",
    }
    model.head = new_head(shape, train.classes, settings.seed)
    described["parameters"] = sum(p.numel() for p in model.parameters())
    return Workload(
        name=f"vit-{shape.dim} on {private}",
        model=model,
        train=train,  # type: ignore[arg-type]
        collate=train.batch,
        losses=losses,
        evaluate=functools.partial(accuracy, images=test),
        description=described,
        predicted_peak=predicted_peak(shape, train.classes, settings.microbatch, _groups(settings)),
    )


@functools.cache
def _public_model(shape: ViTShape, recipe: Recipe, folders: Folders) -> tuple[VisionTransformer, float]:
    """Return the pretrained model, and its accuracy in percent on the public set's own test images."""
    train, test = read(folders.data / PUBLIC)
    model = pretrained(shape, train, recipe, folders.kept / f"vit-{shape.dim}x{shape.depth}.safetensors")
    return model, accuracy(model, test)["accuracy"]


def new_head(shape: ViTShape, classes: int, seed: int) -> nn.Linear:
    """Normal weights of standard deviation 0.02, cut at two of them, and zero biases."""
    head = nn.Linear(shape.dim, classes)
    with torch.no_grad():
        drawn = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
        head.weight.copy_(0.02 * drawn.clamp(-2, 2))
        head.bias.zero_()
    return head


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return cross-entropy of each image, ``[B]``."""
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


Groups = str | tuple[tuple[str, str], ...] | None


def _groups(settings: TrainSettings) -> Groups:
    if settings.epsilon is None:
        return None
    return settings.clipping if isinstance(settings.clipping, str) else tuple(settings.clipping.items())


@functools.cache
def predicted_peak(shape: ViTShape, classes: int, microbatch: int, groups: Groups) -> int:
    """Predict a step's peak on a full micro-batch by :mod:`groupclip.memory`, AdamW's state included; None without privacy."""
    model: VisionTransformer = small_vit(shape, classes)
    batch = (torch.zeros(microbatch, 3, SIDE, SIDE), torch.zeros(microbatch, dtype=torch.long))
    sketched = Sketched(model, batch, losses)
    state, step = optimizer_bytes(model, torch.optim.AdamW(model.parameters()))
    if groups is None:
        curve = sketched.plain()
    else:
        curve = sketched.private(partition(model, groups if isinstance(groups, str) else dict(groups)))
    return sketched.static + state + max(curve.peak, step)


def real_cells(data: Path, kept: Path) -> list[ScaledCell]:
    """Return the cells of docs/reproduction."""
    return cells(FULL, Folders(data, kept))


def smoke_cells(folder: Path) -> list[ScaledCell]:
    """Return three tiny cells on made images, which are written into the folder."""
    write_made(folder / PUBLIC, classes=10, train=200, test=50, seed=1)
    write_made(folder / PRIVATE, classes=4, train=300, test=100, seed=2)
    return cells(SMOKE, Folders(folder, folder / "public"))


EXPERIMENTS = [
    ScaledExperiment(
        name=NAME,
        title="small vision transformers, fine-tuned privately on CIFAR-10 after pretraining on a part of CIFAR-100",
        twin="vision",
        cells=real_cells,
        smoke=smoke_cells,
    )
]
