"""``groupclip advise``: what to begin a private training with, and why."""

from __future__ import annotations

from typing import Any

import click

from .arguments import arguments_at_fault, print_json

STARTS = ("linear", "scratch", "pretrained")


@click.command(short_help="Tell which batch, steps, noise and learning rate to begin with.")
@click.option("--dataset-size", type=int, required=True, help="Set the number of samples (of users), taken as public.")
@click.option("--epsilon", type=float, required=True, help="Set the epsilon that all steps together may spend.")
@click.option("--delta", type=float, help="Set delta. Default: min(1e-5, 1 / (2 * dataset size)).")
@click.option(
    "--start",
    type=click.Choice(STARTS),
    default="scratch",
    show_default=True,
    help="Tell what is trained: a linear model (also on frozen features), a network from random weights, or a pretrained one.",
)
@click.option("--inputs", type=click.IntRange(min=1), help="Set the number of inputs of a linear model, of about unit size.")
@click.option("--model", "name", help="Name a model of groupclip, to be told groups and samples at once; with --memory.")
@click.option("--memory", help="Set the memory of the whole device: 12GB, 800MiB; with --model.")
@click.option("--image-size", type=click.IntRange(min=1), help="Set the side of the images in pixels.")
@click.option("--tokens", type=click.IntRange(min=1), help="Set the length of the texts.")
@click.option("--classes", type=click.IntRange(min=2), help="Set the number of classes.")
@click.option("--sample-seconds", type=float, help="Set the time that a sample takes, forward and backward; with --hours.")
@click.option("--hours", type=float, help="Set the time that all steps together may take; with --sample-seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def advise(
    name: str | None, memory: str | None, image_size: int | None, tokens: int | None, classes: int | None,
    sample_seconds: float | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Tell what to begin a private training with, from public facts alone, with the reasons and the price of tuning.

    \b
    Examples:
      groupclip advise --dataset-size 50000 --epsilon 3 --start linear
      groupclip advise --dataset-size 50000 --epsilon 8 --model cnn-small --memory 2GB --sample-seconds 0.001 --hours 1
    """
    with arguments_at_fault():
        from ..memory.advise import advise as find

        if (name is None) != (memory is None):
            raise ValueError("give --model and --memory, or neither: groups are advised for a memory")
        model = example = None
        if name is not None:
            from .memory import example_of

            model, example = example_of(name, 8, image_size, tokens, classes)
        elif idle := [flag for flag, value in (("image-size", image_size), ("tokens", tokens), ("classes", classes)) if value]:
            raise ValueError(f"--{idle[0]} is about a model: give --model and --memory as well")
        found = find(model=model, example_batch=example, memory=memory, seconds_per_sample=sample_seconds, **given)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(found.text())
