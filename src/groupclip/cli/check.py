"""``groupclip check``: does a model keep the samples of a batch apart?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from .arguments import arguments_at_fault, parse_options, print_json


@click.command()
@click.option("--task", required=True, help="digits, mnist, fashion-mnist, imagefolder:PATH or csv:PATH.")
@click.option("--data", type=click.Path(path_type=Path), help="Path of the task's files, if it isn't in --task.")
@click.option("--task-option", multiple=True, metavar="NAME=VALUE", help="E.g. text_column=review; repeatable.")
@click.option("--model", help="As for groupclip train; default: the task's own.")
@click.option("--model-option", multiple=True, metavar="NAME=VALUE", help="E.g. patch_size=4; repeatable.")
@click.option("--clipping", help="Style of the groups, as for groupclip train.")
@click.option("--samples", type=click.IntRange(min=2), default=3, show_default=True, help="Samples to replay.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    task: str,
    data: Path | None,
    task_option: tuple[str, ...],
    model: str | None,
    model_option: tuple[str, ...],
    clipping: str | None,
    samples: int,
    as_json: bool,
) -> None:
    """Replay neighbouring batches on a model before a long run, and show how each parameter is clipped.

    Exit code 1 if samples are not kept apart. Nothing about the samples is printed.

    \b
    Example:
      groupclip check --model vit-tiny --task digits --clipping layer-wise
    """
    with arguments_at_fault():
        import torch.nn.functional as F
        from torch.utils.data import default_collate

        from ..run.build import groups_of, model_of
        from ..run.config import checked_request, task_options
        from ..run.resolve import resolve
        from ..tasks import load_task
        from ..validate import check as replay

        given: dict[str, Any] = {
            "task": task,
            "data": None if data is None else str(data),
            "task_options": parse_options("--task-option", task_option),
            "model": model,
            "model_options": parse_options("--model-option", model_option),
            "clipping": clipping,
            "epsilon": 1.0,  # any: no noise is added here
        }
        request = checked_request({name: value for name, value in given.items() if value is not None})
        loaded = load_task(request["task"], request.get("data"), task_options(request.get("task_options", {})))
        config = resolve(request, loaded)
        network = model_of(config, loaded)
        groups = groups_of(config, loaded, network, None)
        batch = default_collate([loaded.train[i] for i in range(min(samples, len(loaded.train)))])
        report = replay(
            network, lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), tuple(batch), groups, samples=samples
        )
    if as_json:
        print_json({"model": config.model, "clipping": config.clipping, **dataclasses.asdict(report)})
    else:
        click.echo(str(report))
