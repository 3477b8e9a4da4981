"""How many of torch's threads ``groupclip train`` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..run import PlainRun, Run


def threads_at_first(asked: int | None) -> int:
    """Choose torch's threads while data are read: texts go through an encoder one by one, so one thread is enough."""
    import torch

    from ..run.threads import chosen_by_environment

    return asked or (torch.get_num_threads() if chosen_by_environment() else 1)


def threads_of(asked: int | None, prepared: Run | PlainRun, console: Console) -> int:
    """Choose torch's threads for a run: the number asked for, here or by the environment, or what the model can use."""
    import torch

    from ..run.threads import advised_threads, chosen_by_environment

    if asked is not None or chosen_by_environment():
        return asked or torch.get_num_threads()
    advised = advised_threads(prepared.config, prepared.task, prepared.model)
    several = torch.get_num_threads()
    if advised < several:
        console.print(
            f"{advised} of {several} threads: a micro-batch has too little work for more (--threads and OMP_NUM_THREADS override)",
            soft_wrap=True,
        )
    return advised
