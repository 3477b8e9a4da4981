"""``groupclip report``: several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..durable import write_atomically
from .arguments import arguments_at_fault, check_output, print_json


@click.command(short_help="Compare runs on one page.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("comparison.html"), show_default=True,
              help="Write the page to this file.")
@click.option("--rounds", type=click.IntRange(min=0), default=5, show_default=True,
              help="Measure the time of passes so many times; 0 measures none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object too.")  # fmt: skip
def report(runs: tuple[Path, ...], out: Path, rounds: int, as_json: bool) -> None:
    """Compare finished runs on one page: accuracy, memory and time over the groups, epsilon over the steps, thresholds.

    RUN is a folder that groupclip train wrote. The page is one file, and as public as the runs are: it has what their releases,
    settings and metrics.jsonl hold. Memory is predicted, and time is measured here on made-up records.

    \b
    Example:
      groupclip report runs/all-layer runs/uniform-4 runs/layer-wise --out comparison.html
    """
    with arguments_at_fault():
        check_output("--out", out)
        import torch

        from ..run.environment import environment
        from ..statement.comparison import comparison
        from .compared import compared

        found = compared(runs, rounds)
        page = comparison(found, environment(torch.device("cpu")))
        write_atomically(out, page)
    if as_json:
        print_json({"page": str(out), "runs": [_facts(run) for run in found]})
        return
    click.echo(f"page           {out}")


def _facts(run: Any) -> dict[str, Any]:
    return {
        name: getattr(run, name)
        for name in ("name", "task", "model", "groups", "epsilon", "delta", "steps", "accuracy", "peak_bytes", "seconds")
    }
