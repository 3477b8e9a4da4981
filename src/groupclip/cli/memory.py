"""``groupclip plan``: groups and norm methods for a memory, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .arguments import arguments_at_fault, check_output, print_json

_VOCABULARY = 30_522


@click.command("plan", short_help="Find the groups with which training needs least memory.")
@click.option(
    "--model", "name", required=True, help="Name a model of groupclip (groupclip train --help), e.g. vit-large."
)
@click.option(
    "--batch", "samples", type=click.IntRange(min=1), help="Set the physical batch. Default: the largest that fits."
)
@click.option("--groups", type=click.IntRange(min=1), help="Make at most so many groups.")
@click.option("--memory", help="Set the memory of the whole device: 12GB, 800MiB.")
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "sgd", "none"]),
    default="none",
    help="Count the state of this optimizer.",
)
@click.option(
    "--image-size",
    type=click.IntRange(min=1),
    help="Set the side of the images in pixels. Default: the size that the model is built for.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    help="Set the length of the texts. Default: the length that the model is built for.",
)
@click.option(
    "--classes",
    type=click.IntRange(min=2),
    help="Set the number of classes. Default: the number that the model is built for.",
)
@click.option("--bands", type=click.IntRange(min=1), default=1, help="Count the noise that so many bands keep.")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    help="Tell what each of so many processes keeps and sends. --memory stays that of one process alone.",
)
@click.option(
    "--microbatches",
    type=click.IntRange(min=1),
    default=1,
    help="Count so many micro-batches in a step of each process. Default: 1.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Write the curve of live bytes as .png or .svg.")
@click.option("--partition", "out", type=click.Path(path_type=Path), help="Write the partition as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    name: str,
    samples: int | None,
    groups: int | None,
    memory: str | None,
    optimizer: str,
    image_size: int | None,
    tokens: int | None,
    classes: int | None,
    bands: int,
    ranks: int,
    microbatches: int,
    plot: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Find the groups and norm methods with the least peak memory, or the fewest groups that fit in a memory.

    "estimate" is each group's peak by the model of costs that finds the groups; "predicted peak" follows the whole step and is
    nearer. Nothing is trained and no weight is in memory. The plan is for a step of clipping on this machine's kind of device.

    \b
    Example:
      groupclip plan --model vit-large --batch 32 --groups 4 --plot plan.png
      groupclip plan --model vit-large --batch 32 --memory 12GB
      groupclip plan --model vit-base --memory 8GB --optimizer adamw
      groupclip plan --model vit-large --batch 32 --groups 4 --optimizer adamw --ranks 8
    """
    with arguments_at_fault():
        from ..memory import Plan, largest_batch
        from ..memory.plan import over_ranks
        from ..memory.plan import plan as find

        check_output("--plot", plot, figure=True)
        check_output("--partition", out)
        if samples is None and memory is None:
            raise ValueError("give --batch, the physical batch, or --memory, to find the largest batch that fits")
        if samples is not None and memory is None and groups is None:
            raise ValueError("give --groups, --memory, or both")
        if microbatches > 1 and ranks == 1:
            raise ValueError(f"--microbatches {microbatches} is for what several processes send in a step: give --ranks too")
        model, example = example_of(name, samples or 8, image_size, tokens, classes)
        stepper = _optimizer(optimizer, model)
        found: Plan
        if samples is None:
            assert memory is not None
            found = largest_batch(model, example, memory=memory, groups=groups, optimizer=stepper, bands=bands)
        else:
            found = find(model, example, groups=groups, memory=memory, optimizer=stepper, bands=bands)
        if ranks > 1:
            found = over_ranks(found, model, ranks, microbatches, stepper)
        if plot is not None:
            from ..memory.figures import draw_curves

            curves = {"without privacy": found.plain_curve.levels, found.partition.style: found.curve.levels}
            draw_curves(plot, curves, title=f"{name}, {found.samples} samples: predicted live bytes beside parameters")
        if out is not None:
            out.write_text(found.partition.to_json(), encoding="utf-8")
    if as_json:
        print_json({"model": name, **found.to_dict()})
    else:
        click.echo(found.table())


def example_of(
    name: str, samples: int, image_size: int | None, tokens: int | None, classes: int | None
) -> tuple[Any, Any]:
    """Return the model and a batch, both without memory."""
    import torch

    from ..models import MODELS, build_model

    spec = MODELS.get(name)
    shape = (3, 224, 224) if spec is None else spec.input_shape
    if len(shape) == 3:
        if tokens is not None:
            raise ValueError(f"--tokens {tokens} means nothing to {name}, a model of images")
        shape = shape if image_size is None else (shape[0], image_size, image_size)
    elif image_size is not None:
        raise ValueError(f"--image-size {image_size} means nothing to {name}, a model of texts")
    else:
        shape = shape if tokens is None else (tokens,)
    number = classes or (10 if spec is None else spec.num_classes)
    with torch.device("meta"):
        model = build_model(
            name, input_shape=shape, num_classes=number, vocabulary=_VOCABULARY if len(shape) == 1 else None
        )
        inputs = torch.empty(samples, *shape) if len(shape) == 3 else torch.empty(samples, *shape, dtype=torch.int64)
        return model, (inputs, torch.empty(samples, dtype=torch.int64))


def _optimizer(name: str, model: Any) -> Any:
    from torch.optim import SGD, AdamW

    match name:
        case "adamw":
            return AdamW(model.parameters())
        case "sgd":
            return SGD(model.parameters(), momentum=0.9)
        case _:
            return None
