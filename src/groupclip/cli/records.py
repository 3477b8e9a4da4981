"""``groupclip reproduce records``: the best known results of private training on two cores, run again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .arguments import arguments_at_fault, device_named, print_json
from .cells import run_and_tell


@click.command(short_help="Run the table of best known results.")
@click.option("--row", "names", multiple=True, help="Run this row alone; repeatable. --list names them.")
@click.option("--seeds", type=click.IntRange(1, 5), default=1, show_default=True, help="Run so many times.")
@click.option("--no-privacy", is_flag=True, help="Train the same without clipping and noise, to see what privacy costs.")
@click.option("--list", "as_list", is_flag=True, help="List the rows; run nothing.")
@click.option("--data-folder", type=click.Path(path_type=Path, exists=True), help="Read the data sets from this folder.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
              help="Write results to this folder. What is in it isn't run again.")
@click.option("--dry-run", is_flag=True, help="Build the rows that need a GPU from stand-ins and take one pass; train nothing.")
@click.option("--device", default="cpu", show_default=True, help="Choose the device: auto, cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when done, and nothing else.")
@click.option("--quiet", is_flag=True, help="Show no progress.")  # fmt: skip
def records(
    names: tuple[str, ...], seeds: int, no_privacy: bool, as_list: bool, data_folder: Path | None, out: Path, dry_run: bool,
    device: str, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run the table of best known results: linear models and CNNs on frozen features, CNNs on pixels, a Wide ResNet (for a GPU).

    All settings were fixed beforehand. A run that was stopped goes on when the same command is given again. docs/records.md
    shows what has been run.

    \b
    Examples:
      groupclip reproduce records --list
      groupclip reproduce records --row fashion-mnist --seeds 5 --data-folder data --out results
      groupclip reproduce records --row cifar10-wrn --dry-run
    """
    from ..paper.records.build import jobs
    from ..paper.records.rows import named

    with arguments_at_fault():
        rows = named(names)
    if as_list:
        _list(rows, as_json)
        return
    if dry_run:
        with arguments_at_fault():
            _dry([row for row in rows if row.gpu or names], as_json)
        return
    with arguments_at_fault():
        if data_folder is None:
            raise ValueError("give --data-folder, the folder of the data sets (docs/reproduction-data.md)")
        device = device_named(device)
        if device == "cpu":
            if names and (idle := [row.name for row in rows if row.gpu]):
                raise ValueError(f"row {idle[0]} needs a GPU for hours: give --device cuda, or --dry-run to see that all is there")
            rows = [row for row in rows if not row.gpu]
        found = jobs(rows, range(seeds), data_folder, out, private=not no_privacy)
    with arguments_at_fault():
        told = f"in {out}; next: python benchmarks/records_page.py {out}"
        run_and_tell(found, out, device=device, as_json=as_json, quiet=quiet, told=told)


def _list(rows: Any, as_json: bool) -> None:
    if as_json:
        print_json({"rows": [{**asdict(row), "settings": row.settings.to_dict()} for row in rows]})
        return
    for row in rows:
        best = "no known result that compares" if row.best is None else f"best known {row.best:g} %"
        idle = "; unrun, for a GPU" if row.gpu else ""
        click.echo(f"{row.name}: {row.data}, {row.method}, epsilon {row.epsilon:g}; {best}{idle}")


def _dry(rows: Any, as_json: bool) -> None:
    from ..paper.records.scratch import dry_run

    if ready := [row.name for row in rows if not row.gpu]:
        raise ValueError(f"--dry-run is for rows that need a GPU, and {ready[0]} runs on two cores: run it")
    found = []
    for row in rows:
        numbers, plan = dry_run(row)
        facts = {"row": row.name, "parameters": numbers, "steps": plan.steps, "sample_rate": plan.sample_rate,
                 "noise_multiplier": plan.noise_multiplier, "views": row.settings.views}  # fmt: skip
        found.append(facts)
        if not as_json:
            noise = f"{plan.steps} steps, sigma {plan.noise_multiplier:.4f}"
            click.echo(f"{row.name}: {numbers:,} parameters, {row.settings.views} views, {noise}")
    if as_json:
        print_json({"dry_runs": found})
    else:
        click.echo("Model, views, groups and noise are there. Images were made; nothing was trained.")
