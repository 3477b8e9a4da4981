"""Several processes: how a step's noise is agreed on, measured with gloo; and steps of large models on 8 to 512 GPUs, on paper.

python benchmarks/distributed.py              # measures on 2 processes of one thread: half a minute
python benchmarks/distributed.py --paper      # prints the table of docs/distributed.md; nothing is run
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from groupclip.memory.several import Unit, under_ddp, under_fully_shard

NUMBERS = 20_000_000  # coordinates of the step that is measured
GBIT = 25e9  # bytes a second that a GPU sends and receives: a 200 Gbit/s network
RATE = 0.4 * 312e12  # operations a second: 40 % of an A100's in bfloat16
CLIPPING = 1.2  # of clipping in groups over plain training: docs/performance.md
GPUS = (8, 64, 512)


@dataclass(frozen=True)
class Model:
    name: str
    numbers: int
    blocks: int
    tokens: int
    batch: int
    microbatch: int


MODELS = (
    Model("ViT-large", 304_000_000, 24, 197, 4096, 64),
    Model("RoBERTa-large", 355_000_000, 24, 128, 4096, 64),
    Model("GPT2-large", 774_000_000, 36, 1024, 4096, 8),
    Model("Llama-8B", 8_030_000_000, 32, 2048, 4096, 2),
)


def rows() -> Iterator[str]:
    """The table of the page, line by line."""
    yield "| model | GPUs | wrapper | memory a GPU, GB | sent a step, GB | computing, s | sending, s |"
    yield "|---|---|---|---|---|---|---|"
    for model in MODELS:
        computing = CLIPPING * 6 * model.numbers * model.tokens * model.batch / RATE
        unit = Unit([(1024, model.numbers // model.blocks // 1024)])
        for gpus in GPUS:
            passes = max(1, -(-model.batch // (gpus * model.microbatch)))
            ddp = under_ddp([model.numbers])
            cut = under_fully_shard([unit] * model.blocks, gpus, microbatches=passes, pass_itemsize=2)
            for wrapper, found in (("DDP", ddp), ("fully_shard", cut)):
                held = found.between_passes + (found.largest if wrapper == "fully_shard" else 0)
                sent = found.handed_over * (gpus - 1) / gpus
                yield (
                    f"| {model.name} | {gpus} | {wrapper} | {held / 1e9:.1f} | {sent / 1e9:.1f} | {computing / gpus:.2f} | "
                    f"{sent / GBIT:.2f} |"
                )


def _rank(rank: int, size: int, folder: str) -> None:
    from groupclip.distributed.ranks import Ranks
    from groupclip.distributed.release import release
    from groupclip.noise.sources import SecureNoise

    torch.set_num_threads(1)
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    ranks, noise = Ranks(rank, size), SecureNoise()
    total = torch.zeros(NUMBERS)

    def owners() -> None:
        release(ranks, [(total, 1.0)], noise.add_)

    def every_rank() -> None:  # one key on all ranks
        distributed.all_reduce(total)
        noise.add_(total, 1.0)

    def first_rank() -> None:
        distributed.reduce(total, 0)
        if rank == 0:
            noise.add_(total, 1.0)
        distributed.broadcast(total, 0)

    ways: dict[str, Callable[[], None]] = {
        "each coordinate's owner": owners,
        "every rank, by one key": every_rank,
        "rank 0, for all": first_rank,
    }
    for name, way in ways.items():
        times = []
        for _ in range(5):
            ranks.wait()
            begun = time.monotonic()
            way()
            ranks.wait()
            times.append(time.monotonic() - begun)
        if rank == 0:
            print(f"{name}: {1e3 * min(times):.0f} ms", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    if asked.paper:
        print("\n".join(rows()))
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (asked.ranks, folder), nprocs=asked.ranks)


if __name__ == "__main__":
    main()
