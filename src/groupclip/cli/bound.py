"""``groupclip bound``: the paper's Theorem 1 for numbers of groups and of steps."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from .arguments import arguments_at_fault, check_output, print_json


@click.command(short_help="Compute the paper's Theorem 1 for groups and steps.")
@click.option("--groups", "groups_text", required=True, help="Give numbers of groups M, with commas between them.")
@click.option("--steps", "steps_text", required=True, help="Give numbers of steps T, with commas between them.")
@click.option("--batch-size", type=float, default=1000, show_default=True, help="Set the batch size B.")
@click.option("--sample-rate", type=float, help="Draw Poisson batches with this rate. Default: batches of exactly B.")
@click.option("--noise-multiplier", type=float, default=1.0, show_default=True, help="Set the noise multiplier sigma.")
@click.option(
    "--parameters", type=int, default=1_000_000, show_default=True, help="Set the number d of trainable coordinates."
)
@click.option(
    "--gap", type=float, default=1.0, show_default=True, help="Set how far the loss at the start is above its infimum."
)
@click.option(
    "--smoothness", type=float, default=1.0, show_default=True, help="Set the Lipschitz constant of the gradient."
)
@click.option(
    "--xi", type=float, default=1.0, show_default=True, help="Set the per-sample gradient noise (root mean square)."
)
@click.option(
    "--rho", type=float, default=0.1, show_default=True, help="Set the probability with which the bound may fail."
)
@click.option("--gamma", type=float, default=0.01, show_default=True, help="Set gamma of automatic clipping.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write the bounds over T as .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bound(
    groups_text: str,
    steps_text: str,
    batch_size: float,
    sample_rate: float | None,
    noise_multiplier: float,
    parameters: int,
    gap: float,
    smoothness: float,
    xi: float,
    rho: float,
    gamma: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compute how small the gradient gets by the paper's Theorem 1: DP-SGD with automatic clipping in M groups, T steps.

    The constants (gap, smoothness, xi) aren't known in practice: compare M and T by the figures, which promise nothing about a
    run. They say nothing about privacy; see groupclip epsilon.

    \b
    Example:
      groupclip bound --groups 1,4,75 --steps 10000
      groupclip bound --groups 1,4,75 --steps 1000,100000 --xi 0.1 --plot bound.png
    """
    with arguments_at_fault():
        from ..theory import Setting, sgd, sgd_from_squares

        check_output("--plot", plot, figure=True)
        if sample_rate is not None and not 0 < sample_rate <= 1:
            raise ValueError(f"--sample-rate {sample_rate:g} must be in (0, 1]")
        groups, steps = _whole_numbers("--groups", groups_text), _whole_numbers("--steps", steps_text)
        setting = Setting(
            steps=steps[0], batch_size=batch_size, noise_multiplier=noise_multiplier, parameters=parameters, gap=gap,
            smoothness=smoothness, xi=xi, rho=rho, gamma=gamma,
            batch_size_variance=0.0 if sample_rate is None else batch_size * (1 - sample_rate),
        )  # fmt: skip
        settings = [replace(setting, steps=t) for t in steps]
        rows = [_row(s, m) for s in settings for m in groups]
        without = [{"steps": s.steps, "bound": sgd(s), "from_squares": sgd_from_squares(s)} for s in settings]
        if plot is not None:
            from ..theory.figures import draw_bounds

            most = max(steps)
            draw_bounds(plot, setting, groups, (max(1, min(steps) // 100), min(most * 100, 2**53)))
    if as_json:
        facts = {name: value for name, value in asdict(setting).items() if name != "steps"}
        print_json({"setting": facts, "dp_sgd": rows, "sgd": without, "trivial": setting.trivial})
        return
    click.echo(f"Norm of the gradient at the best of T steps, with probability {1 - rho:g} (see docs/theory.md)\n")
    click.echo(f"{'T':>12} {'M':>6} {'bound':>10} {'T -> inf':>10} {'last line':>10} {'printed':>10}")
    for row in rows:
        cells = (row["bound"], row["small_level"], row["proof_last_line"], row["theorem_as_printed"])
        click.echo(f"{row['steps']:>12,} {row['groups']:>6,} " + " ".join(f"{cell:>10.4g}" for cell in cells))
    for row in without:
        click.echo(
            f"{row['steps']:>12,} {'SGD':>6} {row['from_squares']:>10.4g} {'':>10} {'':>10} {row['bound']:>10.4g}"
        )
    click.echo(
        "\nbound: what the proof gives at this T, with the best r; T -> inf: its limit. last line, printed: the paper's own\n"
        f"asymptotes, which don't follow. At the start the norm is at most {setting.trivial:.4g}: a bound above that says "
        "nothing."
    )


def _row(setting: Any, groups: int) -> dict[str, Any]:
    from ..theory import dp_sgd, headline, proof_last_line, small_level, theorem_as_printed

    found = dp_sgd(setting, groups)
    return {
        "groups": groups,
        "steps": setting.steps,
        "bound": found.norm,
        "r": found.r,
        "level": found.level,
        "informative": found.norm < setting.trivial,
        "small_level": small_level(setting, groups),
        "proof_last_line": proof_last_line(setting, groups),
        "theorem_as_printed": theorem_as_printed(setting, groups),
        "headline": headline(setting, groups),
    }


def _whole_numbers(flag: str, text: str) -> list[int]:
    """Read ``1,4,75``. ValueError otherwise, and for a number below 1."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{flag} {text!r} can't be read: give whole numbers with commas between them, e.g. 1,4,75"
        ) from None
    if min(numbers) < 1:
        raise ValueError(f"{flag} {text!r}: {min(numbers)} must be >= 1")
    return numbers
