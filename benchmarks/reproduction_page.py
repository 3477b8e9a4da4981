"""Writes docs/reproduction.md from the catalogue, the results kept in docs/reproduction/ and the words in reproduction.in.md.

    python benchmarks/reproduction_page.py [FOLDER]

With a folder of results (``--out`` of ``groupclip reproduce``) docs/reproduction/NAME.json is first made from them, for every
experiment in it. A scaled experiment's section is docs/reproduction/NAME.md if somebody wrote or made one; else NAME.in.md,
with @TABLE@ and @HARDWARE@ in it; else its table alone.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from groupclip.paper.catalogue import Table, catalogue
from groupclip.paper.cells import EXPERIMENT
from groupclip.paper.figures import figure_of
from groupclip.paper.listing import small_command
from groupclip.paper.pages import environments, experiments_in
from groupclip.paper.printed import printed_settings
from groupclip.paper.results import Result, gather, gathered
from groupclip.paper.scaled.every import experiments
from groupclip.paper.scaled.experiment import ScaledExperiment
from groupclip.paper.sigma import budgets
from groupclip.paper.sizes import report as size_report
from groupclip.paper.tables import Found, markdown, scaled_table, table_page

DOCS = Path(__file__).parent.parent / "docs"
KEPT = DOCS / "reproduction"


def keep(folder: Path) -> None:
    """Results of a folder as one file an experiment, one line a result."""
    for name in experiments_in(folder):
        gather(folder, name, KEPT / f"{name}.json")


def kept(name: str) -> list[Result]:
    return gathered(KEPT / f"{name}.json")


def settings() -> str:
    head = [
        "data",
        "models",
        "records",
        "epochs",
        "batch size",
        "DP learning rate",
        "weight decay",
        "pixels or tokens",
        "microbatch",
    ]
    rows = [
        [s.title, ", ".join(s.models), f"{s.records:,}", str(s.epochs), f"{s.batch_size:,}", f"{s.learning_rate:g}",
         f"{s.weight_decay:g}", str(s.feature), str(s.microbatch)]
        for s in printed_settings().data.values()
    ]  # fmt: skip
    return markdown(head, rows)


def sigma() -> str:
    head = ["data", "epochs", "epsilon", "delta", "steps", "sample rate", "sigma", "by RDP"]
    rows = [
        [printed_settings().of(b.data).title, str(b.epochs), f"{b.epsilon:g}", f"{b.delta:.3g}", str(b.mechanism.steps),
         f"{b.mechanism.sample_rate:.4g}", f"{b.mechanism.noise_multiplier:.4f}", f"{b.rdp_sigma:.4f}"]
        for b in budgets()
    ]  # fmt: skip
    return markdown(head, rows)


def commands(table: Table) -> str:
    parts = [f"### {table.name}: {table.title} ({table.label})", ""]
    if table.rows:
        rows = [
            [row.model, row.method + ("" if row.groups is None else f" (M={row.groups})"), row.reference, str(len(row.cells())),
             f"`{table.command(row)}`" if row.clipping else "not run"]
            for row in table.rows
        ]  # fmt: skip
        parts += [markdown(["model", "groups", "whose numbers", "runs", "command"], rows), ""]
    parts += [f"    {command}" for command in table.commands] + [""] * bool(table.commands)
    return "\n".join([*parts, *(f"- {note}" for note in table.notes), ""])


def scaled(experiment: ScaledExperiment) -> str:
    found = kept(experiment.name)
    head, command = f"### {experiment.name}: {experiment.title}\n", f"    {small_command(experiment.twin)}\n\n"
    page, words = KEPT / f"{experiment.name}.md", KEPT / f"{experiment.name}.in.md"
    if page.exists():
        body = deeper(page.read_text(encoding="utf-8"))
    elif not found:
        body = f"{command}Not run."
    else:
        body = words.read_text(encoding="utf-8") if words.exists() else f"{command}@TABLE@\n\n@HARDWARE@"
        body = deeper(body.replace("@TABLE@", scaled_table(found)).replace("@HARDWARE@", environments(found)))
    body = body.strip("\n")
    return f"{head}\n{body}\n"


def same_speed() -> str:
    """The paper's figure in words and numbers, from docs/same-speed.json (``benchmarks/same_speed.py --json``)."""
    kept = json.loads((DOCS / "same-speed.json").read_text(encoding="utf-8"))
    rows = [
        [w["style"], str(w["groups"] or "-"), f"{w['ratio']:.2f}", f"{w['least']:.2f} to {w['most']:.2f}",
         f"{w['peak_bytes'] / 1e6:.1f}"]
        for w in kept["ways"]
    ]  # fmt: skip
    setting, ours = kept["setting"], [w["ratio"] for w in kept["ways"] if w["groups"] and "Opacus" not in w["style"]]
    head = (
        f"{setting['model']}, {setting['size']} px, batch {setting['batch']}, {setting['rounds']} rounds in turns, one thread of "
        f"{kept['environment']['processor']}; time over plain training, medians. All styles lie between {min(ours):.2f} and "
        f"{max(ours):.2f}: equally fast, as the paper says. Memory is beside parameters."
    )
    return f"{head}\n\n{markdown(['groups', 'M', 'time / plain', 'of all rounds', 'peak, MB'], rows)}"


def sizes() -> str:
    """Does the gap shrink with size: docs/reproduction/sizes.in.md with the tables of ``benchmarks/sizes.py``."""
    words = (KEPT / f"{size_report.NAME}.in.md").read_text(encoding="utf-8")
    for name, value in size_report.values(kept(size_report.NAME)).items():
        words = words.replace(f"@{name}@", value)
    return words.strip()


def deeper(text: str) -> str:
    """A page of docs/reproduction/ as a section of a page of docs/: its title left out, headings and paths one level down."""
    text = re.sub(r"\A# .*\n", "", text)
    text = re.sub(r"^(#+) ", r"##\1 ", text, flags=re.M)
    return re.sub(r"\]\((?!https?:|#|/)([^)]*)\)", lambda m: f"]({moved(m.group(1))})", text)


def moved(path: str) -> str:
    return path.removeprefix("../") if path.startswith("../") else f"reproduction/{path}"


def full_scale(found: Found) -> tuple[str, dict[str, str]]:
    """The paper's tables, with what was run; and plots by name."""
    plots: dict[str, str] = {}
    parts = [
        "# The paper's tables at full scale",
        "",
        '`groupclip reproduce tables`. Here (paper); "not run" where nothing is.',
        "",
    ]
    for table in catalogue().values():
        if not any(n is not None for row in table.rows for numbers in row.numbers for n in numbers):
            continue
        parts.append(table_page(table, found))
        if (drawn := figure_of(table, found)) is not None:
            plots[table.name] = drawn
            parts.append(f"![{table.title}]({table.name}.svg)\n")
    return "\n".join(parts), plots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of results")
    folder = parser.parse_args().folder
    KEPT.mkdir(exist_ok=True)
    if folder is not None:
        keep(folder)
    full = kept(EXPERIMENT)
    cells = {cell for table in catalogue().values() for row in table.rows for cell in row.cells()}
    run = f"Of the {len(cells)} runs at full scale, {len(full) or 'none'} {'was' if len(full) < 2 else 'were'} made"
    values = {
        "SETTINGS": settings(), "SIGMA": sigma(), "CATALOGUE": "\n".join(commands(t) for t in catalogue().values()).strip(),
        "SCALED": "\n".join(scaled(e) for e in experiments()).strip(), "SPEED": same_speed(),
        "SIZES": sizes(),
        "TWINS": ", ".join(f"{e.name} ({len(kept(e.name)) or 'no'} runs)" for e in experiments()),
        "RGP": printed_settings().not_run["rgp"].strip(),
        "RUN": f"{run}{' (they need a GPU and the hub)' if not full else ''}.",
        "VISION": str(len({cell for row in catalogue()["vision"].rows for cell in row.cells()})),
    }  # fmt: skip
    text = (Path(__file__).parent / "reproduction.in.md").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (DOCS / "reproduction.md").write_text(text, encoding="utf-8")
    page, plots = full_scale(Found(full))
    (KEPT / "full-scale.md").write_text(page, encoding="utf-8")
    for name, drawn in plots.items():
        (KEPT / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
