"""``groupclip statement``: a run's guarantee in the form that somebody else asks for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ..statement.asked import questions
from ..statement.reading import read_record, record_at
from ..statement.registry import blanks, registry_entry
from ..statement.verified import differences
from .arguments import arguments_at_fault


@click.command()
@click.option("--run", type=click.Path(path_type=Path), required=True, help="Take the run in this folder, or a privacy.json.")
@click.option(
    "--as", "form", type=click.Choice(("registry", "questions")), required=True,
    help="Choose the form: registry is an entry of the OpenDP Deployments Registry, in YAML; questions are those of a checklist "
    "and of NIST SP 800-226, each answered or marked as not known.",
)  # fmt: skip
@click.option("--published", type=click.DateTime(["%Y-%m-%d"]), help="Set the day of publication. Default: today (UTC).")
def statement(run: Path, form: str, published: datetime | None) -> None:
    """Write a run's guarantee for a registry, or as answers.

    It comes from the run's record. What only you know is listed, or marked as not known to groupclip.

    \b
    Example:
      groupclip statement --run runs/digits --as registry
      groupclip statement --run runs/digits --as questions
    """
    import yaml

    with arguments_at_fault():
        path = record_at(run)
        day = datetime.now(UTC) if published is None else published
        record = read_record(path)
        if form == "questions":
            _ask(path, record)
            return
        entry = registry_entry(record, slug=f"groupclip-{record.get('plan_hash', '')[:12]}-{day.year}", published=day.date())
    click.echo(yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=110), nl=False)
    click.echo("to fill in:\n" + "\n".join(f"  {where}" for where in blanks(entry)), err=True)


def _ask(path: Path, record: dict[str, Any]) -> None:
    found = differences(record)
    if found:
        raise ValueError(f"{path} claims other than its facts give: {'; '.join(found)}")
    asked = questions(record)
    for source in dict.fromkeys(each.source for each in asked):
        click.echo(f"# {source}\n")
        for each in asked:
            if each.source == source:
                click.echo(f"{each.topic}. {each.question}\n    {each.answer}\n")
    open_ones = [each.topic for each in asked if not each.known]
    click.echo(f"not known to groupclip, in whole or in part: {', '.join(open_ones) or 'nothing'}", err=True)
