"""``groupclip reproduce records``: the best known results of private training on two cores, run again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .arguments import arguments_at_fault, print_json
from .cells import run_and_tell


@click.command(short_help="Run the table of best known results.")
@click.option("--row", "names", multiple=True, help="Run this row alone; repeatable. --list names them.")
@click.option("--seeds", type=click.IntRange(1, 5), default=1, show_default=True, help="Run so many times.")
@click.option("--no-privacy", is_flag=True, help="Train the same without clipping and noise, to see what privacy costs.")
@click.option("--list", "as_list", is_flag=True, help="List the rows; run nothing.")
@click.option("--data-folder", type=click.Path(path_type=Path, exists=True), help="Read the data sets from this folder.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
              help="Write results to this folder. What is in it isn't run again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when done, and nothing else.")
@click.option("--quiet", is_flag=True, help="Show no progress.")  # fmt: skip
def records(
    names: tuple[str, ...], seeds: int, no_privacy: bool, as_list: bool, data_folder: Path | None, out: Path, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Run the table of best known results: linear models on frozen features, with settings that were fixed beforehand.

    A run that was stopped goes on when the same command is given again. docs/records.md shows what has been run.

    \b
    Examples:
      groupclip reproduce records --list
      groupclip reproduce records --row fashion-mnist --seeds 5 --data-folder data --out results
    """
    from ..paper.records.build import jobs
    from ..paper.records.rows import named

    with arguments_at_fault():
        rows = named(names)
    if as_list:
        _list(rows, as_json)
        return
    with arguments_at_fault():
        if data_folder is None:
            raise ValueError("give --data-folder, the folder of the data sets (docs/reproduction-data.md)")
        if names and (idle := [row.name for row in rows if row.settings is None]):
            raise ValueError(f"row {idle[0]} needs a GPU and has no settings for two cores")
        found = jobs(rows, range(seeds), data_folder, out, private=not no_privacy)
    with arguments_at_fault():
        told = f"in {out}; next: python benchmarks/records_page.py {out}"
        run_and_tell(found, out, as_json=as_json, quiet=quiet, told=told)


def _list(rows: Any, as_json: bool) -> None:
    if as_json:
        print_json({"rows": [{**asdict(row), "settings": row.settings and row.settings.to_dict()} for row in rows]})
        return
    for row in rows:
        best = "no known result that compares" if row.best is None else f"best known {row.best:g} %"
        click.echo(f"{row.name}: {row.data}, {row.method}, epsilon {row.epsilon:g}; {best}" + ("" if row.settings else "; not run"))
