"""``groupclip train``: train a model on a task."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..privacy.allocation import ALLOCATIONS
from ..privacy.figures import figure
from .arguments import ACCOUNTANT, arguments_at_fault, parse_adaptive, parse_options, parse_thresholds, print_json
from .options import told
from .plan import SAMPLING
from .signals import StopOnSignal
from .threads import threads_at_first, threads_of

if TYPE_CHECKING:

    from ..run import Outcome, PlainOutcome
    from ..run.company import Company

MOST = 1024  # threads or processes: a machine dies of a mistyped number
SETTINGS = (
    click.option("--task", help="Name the data: digits, mnist, fashion-mnist, imagefolder:PATH or csv:PATH."),
    click.option("--data", help="Give the path of the task's files, if it isn't in --task."),
    click.option(
        "--task-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an option; repeatable. The options are listed below.",
    ),
    click.option(
        "--model",
        help="Name the model: vit-micro, vit-tiny, vit-small, vit-base, vit-large, cnn-small, mlp, linear or text-small.",
    ),
    click.option(
        "--model-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an option; repeatable. The options are listed below.",
    ),
    click.option("--clipping", help="Choose the style of the groups: all-layer, layer-wise, block-wise, uniform:M ..."),
    click.option("--clip", help="Choose the clip function: automatic (default), abadi, flat-normalised or global."),
    click.option("--thresholds", help="Set the thresholds: R (default 1; R_m = R/sqrt(M)), or R_1,..,R_M, or GROUP=R_m,..."),
    click.option("--adaptive", help="Move the thresholds to a quantile of the norms: 0.5, or quantile=0.5,rate=0.2,share=0.01."),
    click.option(
        "--allocation", type=click.Choice(ALLOCATIONS), help="Choose how the groups share the noise. Default: equal."
    ),
    click.option("--hardened", is_flag=True, default=None, help="Draw the noise on a grid, against floating-point attacks."),
    *SAMPLING,
    click.option("--budget", help="Take every step from the budget in this file: see groupclip budget new."),
    click.option(
        "--epsilon",
        type=float,
        help="Set the epsilon that the whole run may spend. With --bands, a run that was stopped may end before its last step, not "
        "to pass it.",
    ),
    click.option(
        "--no-privacy",
        is_flag=True,
        default=None,
        help="Train a baseline without clipping and noise instead. NOT PRIVATE.",
    ),
    click.option("--delta", type=float, help="Set delta. Default: min(1e-5, 1 / (2 * number of samples))."),
    click.option("--lax-delta", is_flag=True, default=None, help="Allow a delta of 1 / (number of samples) or more."),
    ACCOUNTANT,
    click.option("--epochs", type=float, help="Set how often each sample is drawn on average; or give --steps."),
    click.option("--steps", type=int, help="Set the number of optimizer steps; or give --epochs."),
    click.option("--batch-size", type=int, help="Set the EXPECTED size of a batch."),
    click.option(
        "--microbatch", type=int, help="Hold at most so many samples at once; this changes memory and speed alone."
    ),
    click.option(
        "--views", type=int, help="Take so many views of every image, clipped as one: costs time and no epsilon. Default: 1."
    ),
    click.option("--augment", help="Choose how views are made: crop, crop-flip or none. Default: crop-flip; crop for digits."),
    click.option(
        "--average", help="Make the release an average of weights: ema:0.999, tail:0.25, last:50; or none (default)."
    ),
    click.option("--lr", type=float, help="Set the learning rate."),
    click.option("--schedule", help="Choose the schedule of the learning rate: constant, linear or cosine."),
    click.option("--optimizer", help="Choose the optimizer: adamw or sgd."),
    click.option("--momentum", type=float, help="Set the momentum of sgd."),
    click.option("--weight-decay", type=float, help="Set the weight decay."),
    click.option(
        "--pretrain-steps",
        type=int,
        help="Pretrain first for so many steps on drawn letters, which are public; 0: don't.",
    ),
    click.option(
        "--seed",
        type=int,
        help="Set the seed of initial weights and pretraining, which are public. It is never the seed of noise or sampling.",
    ),
    click.option(
        "--tell",
        multiple=True,
        metavar="NAME=TEXT",
        help="Tell what the statement can't know, such as search=none or trust=..; repeatable. See docs/statement.md.",
    ),
    click.option("--eval-every", type=int, help="Evaluate on held-out data after every so many steps; 0: never."),
    click.option("--device", help="Choose the device: auto, cpu or cuda."),
)


def _settings(command: Any) -> Any:
    for option in reversed(SETTINGS):
        command = option(command)
    return command


@click.command(context_settings={"show_default": False}, epilog=told())
@_settings
@click.option("--config", type=click.Path(path_type=Path), help="Read settings from YAML, such as a run's run.yaml.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write everything to this new or empty folder. Default: runs/TASK-N.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Go on with the run in this folder; --microbatch alone may differ.",
)
@click.option("--keep-resume", is_flag=True, help="Keep OUT/resume (secret) when the run has ended.")
@click.option(
    "--workers",
    type=click.IntRange(0, MOST),
    default=0,
    help="Decode images with so many threads at the start, and with so many processes later if memory can't hold all. Default: 0.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST),
    help="Use so many of torch's threads on the CPU. Default: OMP_NUM_THREADS if it is set; else 1 for small models, up to all "
    "cores for large ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when done, and nothing else.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def train(
    config: Path | None,
    out: Path | None,
    resume: Path | None,
    keep_resume: bool,
    workers: int,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    **given: Any,  # the settings: click passes them by name, and they go on as one request
) -> None:
    """Train a model with differential privacy.

    The task's recipe sets what you leave out; the run writes all settings to OUT/run.yaml. Every step is charged on the disk
    before it is taken. Every 30 seconds a checkpoint is written, at the end of a step. A crash loses the work since then, and the
    lost steps stay charged. Ctrl-C (exit code 130) and SIGTERM (143) finish the step, write a checkpoint and say how to go on; a
    second signal stops at once. With --bands, going on costs a round of noise, unless the steps so far are a multiple of the bands:
    the run then ends before it would pass --epsilon, and says at which step. Processes that torchrun starts train one model
    together; the first one tells of it and writes.

    \b
    Examples:
      groupclip train --task digits --clipping uniform:2 --epsilon 3 --out runs/digits
      groupclip train --task csv:reviews.csv --task-option text_column=review --epsilon 3 --out runs/reviews
      groupclip train --config runs/digits/run.yaml
      groupclip train --resume runs/digits
      torchrun --nproc-per-node 2 -m groupclip train --task digits --epsilon 3 --out runs/digits
    """
    from .processes import joined

    with contextlib.ExitStack() as stack:
        with arguments_at_fault():
            together = stack.enter_context(joined())
        _train(together, config, out, resume, keep_resume, workers, threads, as_json, quiet, given)


def _train(
    together: Company, config: Path | None, out: Path | None, resume: Path | None, keep_resume: bool, workers: int,
    threads: int | None, as_json: bool, quiet: bool, given: Mapping[str, Any],
) -> None:  # fmt: skip
    from rich.console import Console

    from .. import run
    from ..run.threads import using
    from .loading import Loading
    from .progress import Terminal

    console = Console(stderr=True, quiet=quiet or as_json or not together.keeps, highlight=False)
    with arguments_at_fault(), using(threads_at_first(threads)), Loading(console) as loading:
        settings = together.all(lambda: {} if config is None else run.read_yaml(config), "the settings")
        request = _request(settings, given)
        if resume is not None:
            if out is not None and out.absolute() != resume.absolute():
                raise ValueError(f"--resume {resume} goes on in that folder, but --out is {out}; leave --out out")
            prepared = run.resume(resume, request, workers=workers, told=loading)
        else:
            folder = Path(together.told_by_first(str(_free_folder(request)))) if out is None else out
            begin = run.start_plain if request.get("no_privacy") else run.start
            if request.get("bands", 1) != 1:
                console.print("finding the noise ..", markup=False)
            prepared = begin(request, folder, workers=workers, told=loading)
        loading.remarks(prepared.task.remarks)
    signals = StopOnSignal()
    try:
        with signals, using(threads_of(threads, prepared, console)), Terminal(signals, console) as terminal:
            outcome = prepared.train(terminal, keep_resume=keep_resume)
    except run.RunInterrupted as interrupted:
        click.echo(f"groupclip: {interrupted}", err=True)
        raise click.exceptions.Exit(signals.exit_code) from None
    if not together.keeps:
        return
    if as_json:
        print_json({k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(outcome).items()})
    else:
        _summarise(outcome)


def _request(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of a file with those of the command line, which win."""
    flags = {name: value for name, value in given.items() if value is not None and name not in _PAIRS}
    if "thresholds" in flags:
        flags["thresholds"] = parse_thresholds(flags["thresholds"])
    if "adaptive" in flags:
        flags["adaptive"] = parse_adaptive(flags["adaptive"])
    for name, setting in _PAIRS.items():
        options = parse_options(f"--{name.replace('_', '-')}", given[name])
        if options is not None:
            flags[setting] = options
    replaced = {
        "epochs": ("steps",),
        "steps": ("epochs",),
        "task": ("data", "task_options"),
        "model": ("model_options",),
    }
    if flags.get("no_privacy"):  # a training of its own for the same model, data and seed
        settings = {name: value for name, value in settings.items() if name in _COMMON}
    dropped = {other for name in flags for other in replaced.get(name, ())}
    return {**{k: v for k, v in settings.items() if k not in dropped}, **flags}


_PAIRS = {"task_option": "task_options", "model_option": "model_options", "tell": "told"}  # of NAME=VALUE -> setting
_COMMON = ("task", "data", "task_options", "model", "model_options", "seed", "device", "pretrain_steps")


def _free_folder(request: Mapping[str, Any]) -> Path:
    """Return ``runs/TASK-N`` with the first N that is free."""
    task = str(request.get("task", "run")).partition(":")[0]
    name = f"{task}-not-private" if request.get("no_privacy") else task
    return next(path for n in itertools.count(1) if not (path := Path("runs") / f"{name}-{n}").exists())


def _summarise(outcome: Outcome | PlainOutcome) -> None:
    from .. import run

    if outcome.test_accuracy is not None:
        click.echo(
            f"test accuracy  {outcome.test_accuracy:.1%} on held-out records ({outcome.majority_share:.1%} by always naming "
            "their commonest class)"
        )
    for finding in outcome.findings:
        click.echo(f"note           {finding}")
    if not isinstance(outcome, run.Outcome):
        click.echo("privacy        NONE: NOT PRIVATE, a baseline without clipping and noise; don't publish its weights")
        click.echo(f"weights        {outcome.weights}")
        click.echo(f"report         {outcome.report}")
        return
    click.echo(
        "baseline       not measured, because it would tell of the training records without noise. To see it: "
        f"groupclip train --config {outcome.out / 'run.yaml'} --no-privacy"
    )
    click.echo(
        f"privacy        epsilon {figure(outcome.epsilon)} at delta {outcome.delta:g}, after {outcome.steps} steps"
    )
    if outcome.budget is not None:
        held = outcome.budget
        click.echo(
            f"budget         epsilon {figure(held.epsilon)} at delta {held.delta:g} spent by all its entries, "
            f"{held.entries:,} with this run"
        )
    click.echo(f"release        {outcome.release}")
    click.echo(f"report         {outcome.report}")
