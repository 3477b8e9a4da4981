"""``groupclip reproduce``: every table and figure of the paper, at full scale or small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .arguments import arguments_at_fault, device_named, print_json
from .cells import run_and_tell
from .records import records

if TYPE_CHECKING:
    from ..paper.catalogue import Table
    from ..paper.cells import Cell
    from ..paper.runner import Job

FIELDS = ("model", "data", "epsilon", "clipping", "clip", "thresholds", "epochs", "seed")


class Experiments(click.Group):
    """Tables and figures are commands; they are read from the catalogue when one is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from ..paper.catalogue import ORDER

        return [*super().list_commands(ctx), *ORDER]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from ..paper.catalogue import ORDER, catalogue

        if cmd_name not in ORDER:
            return super().get_command(ctx, cmd_name)
        with arguments_at_fault():
            return _experiment(catalogue()[cmd_name])


@click.group(
    cls=Experiments,
    invoke_without_command=True,
    context_settings={"max_content_width": 110},
    short_help="Run the paper's tables and figures.",
)
@click.option("--list", "as_list", is_flag=True, help="List every row and figure of the paper, with its command.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as one JSON object.")
@click.pass_context
def reproduce(context: click.Context, as_list: bool, as_json: bool) -> None:
    """Run the paper's tables and figures: one command each, with the paper's settings.

    \b
    Examples:
      groupclip reproduce --list
      groupclip reproduce vision --model vit-small --data cifar10 --epsilon 2 --clipping uniform:4 --out results
      groupclip reproduce vision --scale small --out results
      groupclip reproduce roberta --dry-run
      groupclip reproduce tables --results results
    """
    if context.invoked_subcommand is None:
        if not as_list:
            click.echo(context.get_help())
        elif as_json:
            from ..paper.listing import facts

            print_json(facts())
        else:
            from ..paper.listing import text

            click.echo(text())


@reproduce.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sigma(as_json: bool) -> None:
    """Compute the noise multiplier of every column of the paper's settings table, and of the paper's other budgets.

    This takes about a minute.

    \b
    Example:
      groupclip reproduce sigma
    """
    from ..paper.sigma import budgets

    rows = []
    if not as_json:
        click.echo(
            f"{'data':>9} {'epsilon':>8} {'delta':>9} {'epochs':>7} {'batch':>6} {'steps':>6} {'sigma':>8} {'by RDP':>8}"
        )
    for b in budgets():
        m = b.mechanism
        row = {
            "data": b.data, "epsilon": b.epsilon, "delta": b.delta, "epochs": b.epochs, "batch_size": m.expected_batch_size,
            "records": m.dataset_size, "steps": m.steps, "noise_multiplier": m.noise_multiplier, "by_rdp": b.rdp_sigma,
        }  # fmt: skip
        rows.append(row)
        if not as_json:
            click.echo(
                f"{b.data:>9} {b.epsilon:>8g} {b.delta:>9.3g} {b.epochs:>7} {m.expected_batch_size:>6} {m.steps:>6} "
                f"{m.noise_multiplier:>8.4f} {b.rdp_sigma:>8.4f}"
            )
    if as_json:
        print_json({"budgets": rows})
    else:
        click.echo(
            "\nsigma is by the smaller of two accountants, RDP and PLD; 'by RDP' is what the paper's accountant alone asks for."
        )


@reproduce.command()
@click.option(
    "--results",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="Read the results of this folder: one that was given as --out, or one of NAME.json files gathered from it.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write tables (.md) and plots (.svg) to this folder. Default: --results.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the names of the files as one JSON object.")
def tables(results: Path, out: Path | None, as_json: bool) -> None:
    """Write tables and plots of what has been run, next to the paper's numbers.

    \b
    Example:
      groupclip reproduce tables --results results
    """
    from ..paper.pages import write_pages

    with arguments_at_fault():
        files = write_pages(results, results if out is None else out)
    if as_json:
        print_json({"files": [str(f) for f in files]})
    else:
        for file in files:
            click.echo(str(file))


reproduce.add_command(records)

OPTIONS = (
    click.option("--model", help="Run these models alone; several with commas between them. The next options work alike."),
    click.option("--data", help="Run these data sets alone."),
    click.option("--epsilon", help="Run these budgets alone, e.g. 2,8; none: without privacy."),
    click.option("--clipping", help="Run these styles alone, e.g. uniform:4; none: without privacy."),
    click.option("--clip", help="Run these clip functions alone: automatic, abadi."),
    click.option("--thresholds", help="Run these kinds of thresholds alone: fixed, adaptive."),
    click.option("--epochs", help="Run these numbers of epochs alone."),
    click.option("--seed", help="Run these seeds, of new heads and of batches without privacy, never of noise. Default: 0."),
    click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True,
                 help="Choose the scale; small: a twin on small real data, which runs on two cores."),
    click.option("--dry-run", is_flag=True, help="Build everything from tiny stand-ins, offline; train nothing."),
    click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
                 help="Write results to this folder. What is in it isn't run again."),
    click.option("--data-folder", type=click.Path(path_type=Path, exists=True),
                 help="Read local copies of data and weights, instead of the Hugging Face hub."),
    click.option("--subset", is_flag=True, help="Allow local data that are a part of the published data."),
    click.option("--microbatch", type=click.IntRange(min=1),
                 help="Hold at most so many samples at once, if the paper's number is too large."),
    click.option("--device", default="auto", show_default=True, help="Choose the device: auto, cpu or cuda."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object when done, and nothing else."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)  # fmt: skip


def _experiment(table: Table) -> click.Command:
    def callback(**given: Any) -> None:
        with arguments_at_fault():
            _run(table, **given)

    command: Callable[..., Any] = callback
    for option in reversed(OPTIONS):
        command = option(command)
    example = next((table.command(row) for row in table.rows if row.clipping), "")
    more = "\n".join(f"  {line}" for line in (example and f"{example} --dry-run", *table.commands) if line)
    text = f"{table.title} ({table.label}).\n\n\b\nExamples:\n{more}"
    return click.command(name=table.name, help=text, short_help=f"{table.label}: {table.title}")(command)


def _run(table: Table, *, scale: str, dry_run: bool, out: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    from ..paper.selection import chosen, split

    wanted = {field: split(given[field]) for field in FIELDS if given[field] is not None}
    seeds = [int(seed) for seed in wanted.pop("seed", ["0"])] if scale == "full" else []  # small cells have theirs
    device = device_named(given["device"])
    if scale == "small":
        from ..paper.scaled.choice import small_jobs

        if dry_run:
            raise ValueError("--dry-run is for the full scale; small runs need no stand-ins")
        jobs = small_jobs(table.name, wanted, given["data_folder"], out)
    elif not table.rows:
        raise ValueError(f"{table.name} trains nothing; its commands: {'; '.join(table.commands)}")
    elif dry_run:
        return _dry(chosen(table, wanted, seeds), as_json)
    else:
        jobs = _full_jobs(chosen(table, wanted, seeds), given["data_folder"], given["subset"], given["microbatch"])
    told = f"of {table.name} in {out}; next: groupclip reproduce tables --results {out}"
    return run_and_tell(jobs, out, device=device, as_json=as_json, quiet=quiet, told=told)


def _full_jobs(cells: Sequence[Cell], folder: Path | None, subset: bool, microbatch: int | None) -> list[Job]:
    from ..paper.build import build
    from ..paper.runner import paper_jobs
    from ..paper.source import Hub, Local

    if subset and folder is None:
        raise ValueError("--subset is about local data: give --data-folder")
    source = Hub() if folder is None else Local(folder=folder, subset=subset)
    return paper_jobs(cells, lambda data, model, where: build(data, model, source=where), source, microbatch=microbatch)


def _dry(cells: Sequence[Cell], as_json: bool) -> None:
    from ..paper.build import build
    from ..paper.dryrun import dry_runs

    rows = []
    for found in dry_runs(cells, lambda data, model, where: build(data, model, source=where)):
        plan, groups = found.mechanism, found.groups
        row = {
            **found.cell.key(), "groups": 0 if groups is None else len(groups),
            "steps": None if plan is None else plan.steps, "sample_rate": None if plan is None else plan.sample_rate,
            "noise_multiplier": None if plan is None else plan.noise_multiplier,
        }  # fmt: skip
        rows.append(row)
        if not as_json:
            noise = (
                "" if plan is None else f": M={row['groups']}, {plan.steps} steps, sigma {plan.noise_multiplier:.4f}"
            )
            click.echo(f"{found.cell}{noise}")
    if as_json:
        print_json({"dry_runs": rows})
    else:
        click.echo(
            f"{len(rows)} runs: model, data, groups and noise are there. Stand-ins were used; nothing was trained."
        )
