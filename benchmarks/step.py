"""Time of one forward and backward pass over plain training, styles interleaved in one run; prints JSON.

    python benchmarks/step.py --model vit-small --size 224 --batch 4 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F

from groupclip.models import build_model
from groupclip.paper.bench import interleaved, one_pass

STYLES = ("all-layer", "uniform:4", "block-wise", "layer-wise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit-small")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    x, y = torch.randn(given.batch, 3, given.size, given.size), torch.randint(10, (given.batch,))

    def passes(style: str | None) -> Callable[[], None]:
        model = build_model(given.model, input_shape=(3, given.size, given.size), num_classes=10, seed=0)
        return one_pass(model, lambda: F.cross_entropy(model(x), y, reduction="none"), style)

    times = interleaved({style or "plain": passes(style) for style in (None, *STYLES)}, given.rounds)
    plain = statistics.median(times["plain"])
    ratios = {name: round(statistics.median(t) / plain, 3) for name, t in times.items()}
    setting = vars(given) | {"torch": torch.__version__, "processor": platform.processor() or platform.machine()}
    print(json.dumps({"ratios": ratios, "plain_seconds": round(plain, 3), "setting": setting}, indent=2))


if __name__ == "__main__":
    main()
