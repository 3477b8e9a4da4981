"""``groupclip statement``: a run's guarantee in the form that somebody else asks for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from ..statement.registry import blanks, registry_entry
from .arguments import arguments_at_fault


@click.command()
@click.option("--run", type=click.Path(path_type=Path), required=True, help="Take the run in this folder, or a privacy.json.")
@click.option(
    "--as", "form", type=click.Choice(("registry",)), required=True,
    help="Choose the form: registry is an entry of the OpenDP Deployments Registry, in YAML.",
)  # fmt: skip
@click.option("--published", type=click.DateTime(["%Y-%m-%d"]), help="Set the day of publication. Default: today (UTC).")
def statement(run: Path, form: str, published: datetime | None) -> None:
    """Write a run's guarantee in the form of a registry.

    It comes from the run's record; what only you know is listed.

    \b
    Example:
      groupclip statement --run runs/digits --as registry
    """
    import yaml

    with arguments_at_fault():
        path = run if run.is_file() else run / "release" / "privacy.json"
        day = datetime.now(UTC) if published is None else published
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError(f"{path} is no privacy record: it holds no JSON object")
        entry = registry_entry(record, slug=f"groupclip-{record.get('plan_hash', '')[:12]}-{day.year}", published=day.date())
    click.echo(yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=110), nl=False)
    click.echo("to fill in:\n" + "\n".join(f"  {where}" for where in blanks(entry)), err=True)
