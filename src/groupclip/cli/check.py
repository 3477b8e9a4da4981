"""``groupclip check``: does a model keep the samples of a batch apart?"""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from .arguments import arguments_at_fault, print_json
from .options import told
from .task import chosen, cross_entropy, task_options

_BATCH = 8  # samples of the batch that they are held against


@click.command(epilog=told(), short_help="Check that a model keeps samples apart, before a long run.")
@task_options
@click.option("--samples", type=click.IntRange(min=2), default=3, show_default=True, help="Run so many samples alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(samples: int, as_json: bool, **given: Any) -> None:
    """Replay neighbouring batches on a model before a long run, and show how each parameter is clipped.

    Exit code 1 if samples are not kept apart. Nothing about the samples is printed.

    \b
    Example:
      groupclip check --model vit-tiny --task digits --clipping layer-wise
    """
    with arguments_at_fault():
        from torch.utils.data import default_collate

        from ..validate import check as replay

        found = chosen({**given, "epsilon": 1.0})  # any: no noise is added here
        train = found.task.train
        batch = default_collate([train[i] for i in range(min(max(samples, _BATCH), len(train)))])
        report = replay(found.model, cross_entropy, tuple(batch), found.groups, samples=samples)
    if as_json:
        print_json({"model": found.config.model, "clipping": found.config.clipping, **dataclasses.asdict(report)})
    else:
        click.echo(str(report))
