"""Peak memory, predicted and measured; writes docs/memory.json, from which benchmarks/memory_page.py makes the page.

    python benchmarks/memory.py --out docs/memory.json --figures docs/figures
    python benchmarks/memory.py --only accuracy --out part.json

Needs transformers for the text models. At most 4 GB of memory, about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import copy
import gc as collector
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import draw_lines, draw_trade
from groupings import bell
from shapes import Made, gpt2, hf, hf_vit, llama, roberta, text, vit
from torch import nn

import groupclip as gc
from groupclip.memory import Fact, Planner, measure
from groupclip.memory.figures import draw_curves
from groupclip.memory.trace import Linear
from groupclip.memory.workload import default_loss
from groupclip.paper.bench import interleaved, one_pass

STYLES = ("all-layer", "uniform:2", "uniform:4", "block-wise", "layer-wise", "planned:4")

SMALL_LLAMA = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
               "vocab_size": 2000}  # fmt: skip

SHAPES: dict[str, Callable[[], Made]] = {
    "vit-tiny, 224 px, B=4": lambda: vit("vit-tiny", 224, 4),
    "vit-small, 224 px, B=4": lambda: vit("vit-small", 224, 4),
    "vit-small, 32 px, B=32": lambda: vit("vit-small", 32, 32),
    "vit-base, 224 px, B=2": lambda: vit("vit-base", 224, 2),
    "text-small, T=64, B=32": lambda: text(32),
    "RoBERTa-base, T=128, B=2": lambda: hf(roberta(), 128, 2),
    "GPT2, T=100, B=2": lambda: hf(gpt2(), 100, 2),
    "Llama of 4 blocks, T=128, B=4": lambda: hf(llama(**SMALL_LLAMA), 128, 4),
    "Llama of 12 blocks, T=32, B=16": lambda: hf(llama(**SMALL_LLAMA | {"num_hidden_layers": 12}), 32, 16),
    "vit-small, 224 px, B=8": lambda: vit("vit-small", 224, 8),
}


def accuracy() -> list[dict[str, Any]]:
    """Predicted and measured peaks beside parameters; methods ``auto``, of planned:4 its own."""
    rows = []
    for name, make in SHAPES.items():
        model, batch = make()
        planner = Planner(model, batch)
        rows.append(_row(name, "without privacy", planner.plain.peak, measure(model, batch).peak))
        for style in STYLES:
            groups = planner.least(4).partition if style == "planned:4" else gc.partition(model, style)
            predicted = planner.sketched.private(groups).peak
            rows.append(_row(name, style, predicted, measure(model, batch, groups).peak))
            print(rows[-1], flush=True)
        del model, batch, planner
        collector.collect()
    return rows


def _row(shape: str, style: str, predicted: int, measured: int) -> dict[str, Any]:
    return {"shape": shape, "style": style, "predicted": predicted, "measured": measured}


def instantiated() -> list[dict[str, Any]]:
    """Every gradient instantiated, where the choice of groups weighs most: uniform and planned, measured."""
    rows = []
    for name in (
        "vit-tiny, 224 px, B=4",
        "vit-small, 224 px, B=4",
        "GPT2, T=100, B=2",
        "Llama of 12 blocks, T=32, B=16",
    ):
        model, batch = SHAPES[name]()
        planner = Planner(model, batch)
        names = [n for n, _ in model.named_parameters()]
        for style in ("all-layer", "uniform:4", "layer-wise", "planned:4", "planned:8"):
            if style.startswith("planned"):
                groups = fixed_plan(planner, int(style[-1]), "instantiated")
            else:
                groups = gc.partition(model, style).with_methods(dict.fromkeys(names, "instantiated"))
            rows.append(_row(name, style, planner.sketched.private(groups).peak, measure(model, batch, groups).peak))
            print(rows[-1], flush=True)
        collector.collect()
    return rows


def fixed_plan(planner: Planner, groups: int, method: str) -> gc.Partition:
    """The least peak with one norm method for all layers."""
    import dataclasses

    from groupclip.memory.methods import least_bytes
    from groupclip.memory.planner import least_peak

    only = tuple(
        dataclasses.replace(layer, options=tuple(o for o in layer.options if o.method == method) or layer.options)
        for layer in planner.layers
    )
    starts, _ = least_peak(least_bytes(only).cost, groups)
    chosen = [layer.options.index(one.options[0]) for layer, one in zip(planner.layers, only, strict=True)]
    return planner.partition(starts, chosen, f"planned:{groups}")[0]


def linear_layers(planner: Planner) -> tuple[list[Linear], list[str]]:
    """The linear layers from the bottom up, and the name of each one's layer."""
    found = [(x, layer.name) for layer in reversed(planner.traced) for x in layer.linear]
    return [x for x, _ in found], [name for _, name in found]


def fact() -> dict[str, Any]:
    """Peaks of the paper's Fact over the inputs of all layers."""
    nets = {
        "ViT-L, T=197": lambda: vit("vit-large", 224, 2, meta=True),
        "GPT2-large, T=100": lambda: hf(gpt2(n_embd=1280, n_layer=36, n_head=20), 100, 2, meta=True),
        "Llama-7B, T=2048": lambda: hf(llama(), 2048, 2, meta=True),
    }
    found = {}
    for name, make in nets.items():
        model, batch = make()
        planner = Planner(model, batch)
        layers, names = linear_layers(planner)
        model_of = Fact(tuple(layers))
        base = model_of.inputs[-1]
        groups = {m: model_of.plan(m)[1] / base for m in (1, 2, 3, 4, 6, 8)}
        uniform = {}
        for m in (4, 8):
            style = gc.partition(model, f"uniform:{m}")
            group = [next(g for g in style if any(p.startswith(f"{n}.") for p in style[g])) for n in names]
            starts = [i for i in range(len(group)) if i == 0 or group[i] != group[i - 1]]
            uniform[m] = model_of.peak(starts) / base
        every = model_of.peak(range(len(layers))) / base
        found[name] = {"layers": len(layers), "planned": groups, "uniform": uniform, "layer-wise": every,
                       "sizes_of_6": [b - a for a, b in zip(*_spans(model_of, 6), strict=True)][::-1]}  # fmt: skip
        print(name, found[name], flush=True)
    return found


def _spans(model: Fact, groups: int) -> tuple[list[int], list[int]]:
    starts = list(model.plan(groups)[0])
    return starts, [*starts[1:], len(model.layers)]


def boundaries() -> dict[str, Any]:
    """Two groups, split after X of 12 blocks (2X of 24 for ViT-L): the memory columns of the paper's Table 2."""
    nets = {
        "ViT-L, B=50": (lambda: vit("vit-large", 224, 50, meta=True), 2),
        "RoBERTa-base, T=256, B=40": (lambda: hf(roberta(), 256, 40, meta=True), 1),
    }
    found = {}
    for name, (make, factor) in nets.items():
        model, batch = make()
        planner = Planner(model, batch)
        static = planner.static
        names = [n for n, _ in model.named_parameters()]
        layers, places = linear_layers(planner)
        model_of = Fact(tuple(layers))
        columns: dict[str, Any] = {"non-DP": {"gram": static + planner.plain.peak}}
        for style in (*(f"boundaries:{x * factor}" for x in (2, 4, 6, 8, 10)), "all-layer"):
            groups = gc.partition(model, style)
            at = [next(g for g in groups if any(p.startswith(f"{n}.") for p in groups[g])) for n in places]
            starts = [i for i in range(len(at)) if i == 0 or at[i] != at[i - 1]]
            columns[style] = {"fact": 4 * planner.sketched.samples * model_of.peak(starts)}
            for method in ("gram", "instantiated"):
                curve = planner.sketched.private(groups.with_methods(dict.fromkeys(names, method)))
                columns[style][method] = static + curve.peak
            print(name, style, columns[style], flush=True)
        found[name] = columns
    return found


def library() -> dict[str, Any]:
    """The same columns with Book-Keeping made of hooks as in the paper's library, parameters and Adam's state included."""
    from hooks import Keeps, numbers, peak

    nets = {
        "ViT-L, B=50": (lambda: hf_vit(50), 2),
        "ViT-L, B=50, fused attention": (lambda: vit("vit-large", 224, 50, meta=True), 2),
        "RoBERTa-base, T=256, B=40": (lambda: hf(roberta(attn_implementation="eager"), 256, 40, meta=True), 1),
    }
    ways = {"all": Keeps(), "without one-hot": Keeps(one_hot=False), "without norms": Keeps(norms=False)}
    found: dict[str, Any] = {}
    for name, (make, factor) in nets.items():
        model, batch = make()
        static = 12 * numbers(model)
        found[name] = {"non-DP": {"all": static + peak(model, batch, None, Keeps())}}
        for x in (2, 4, 6, 8, 10, 12):
            groups = gc.partition(model, "all-layer" if x == 12 else f"boundaries:{x * factor}")
            group_of = {parameter: group for group in groups for parameter in groups[group]}
            style = "all-layer" if x == 12 else str(x)
            found[name][style] = {way: static + peak(model, batch, group_of, keeps) for way, keeps in ways.items()}
            print(name, style, found[name][style], flush=True)
    return found


def curves(figures: Path) -> dict[str, Any]:
    """The paper's figures: curves of five styles, and peaks against the number of groups."""
    model, batch = vit("vit-large", 224, 32, meta=True)
    planner = Planner(model, batch)
    names = [n for n, _ in model.named_parameters()]
    found: dict[str, Any] = {}
    for method in ("gram", "instantiated"):
        lines = {"without privacy": planner.plain.levels}
        for style in ("all-layer", "uniform:4", "layer-wise"):
            groups = gc.partition(model, style).with_methods(dict.fromkeys(names, method))
            lines[style] = planner.sketched.private(groups).levels
        lines["planned:4"] = planner.sketched.private(fixed_plan(planner, 4, method)).levels
        for ending in ("png", "svg"):
            draw_curves(
                figures / f"vit-large-{method}.{ending}", lines, title=f"ViT-L, B=32, predicted ({method} norms)"
            )
        found[method] = {name: max(levels) for name, levels in lines.items()}
    against = {"uniform:M": [], "planned:M": []}
    for m in (1, 2, 3, 4, 6, 8, 12, 24):
        groups = gc.partition(model, f"uniform:{m}").with_methods(dict.fromkeys(names, "instantiated"))
        against["uniform:M"].append((m, planner.sketched.private(groups).peak))
        against["planned:M"].append((m, planner.sketched.private(fixed_plan(planner, m, "instantiated")).peak))
    for ending in ("png", "svg"):
        draw_lines(
            figures / f"vit-large-groups.{ending}", against, "ViT-L, B=32: peak, gradients instantiated", "groups M"
        )
    found["groups"] = against
    model, batch = vit("vit-small", 224, 4)
    planner = Planner(model, batch)
    predicted, measured = {"without privacy": planner.plain.levels}, {"without privacy": measure(model, batch).levels}
    for style in ("all-layer", "uniform:4", "layer-wise", "planned:4"):
        groups = fixed_plan(planner, 4, "instantiated") if style == "planned:4" else gc.partition(model, style)
        groups = groups.with_methods({n: "instantiated" for n, _ in model.named_parameters()})
        predicted[style] = planner.sketched.private(groups).levels
        measured[style] = measure(model, batch, groups).levels
    for ending in ("png", "svg"):
        draw_curves(figures / f"vit-small-measured.{ending}", predicted, measured, "ViT-S, B=4, gradients instantiated")
    return found


#: Groups of uniform:M; the last is layer-wise.
UNIFORM = (1, 2, 3, 4, 6, 12)
SMALL_GPT = {"n_embd": 384, "n_layer": 12, "n_head": 6, "vocab_size": 4000, "n_positions": 128}
ROUNDS = 7


def throughput(figures: Path) -> dict[str, Any]:
    """Peak and throughput against the number of groups, both measured; norm method ``auto``, of planned:4 its own.

    Every round runs one pass of each style, beginning with another style each time; a ratio is to the plain pass of its
    own round, and of the ratios the median is taken.
    """
    shapes = {
        "vit-small, 224 px, B=4": lambda: vit("vit-small", 224, 4),
        "GPT of 12 blocks of 384, T=128, B=4": lambda: hf(gpt2(**SMALL_GPT), 128, 4),
    }
    found: dict[str, Any] = {}
    for name, make in shapes.items():
        torch.manual_seed(0)
        model, batch = make()
        planner = Planner(model, batch)
        styles = {f"uniform:{m}": gc.partition(model, f"uniform:{m}") for m in UNIFORM}
        styles |= {"layer-wise": gc.partition(model, "layer-wise"), "planned:4": planner.least(4).partition}
        rows = {"without privacy": {"groups": 0, "peak": measure(model, batch).peak}}
        for style, groups in styles.items():
            rows[style] = {"groups": len(groups), "peak": measure(model, batch, groups).peak}
        del planner
        times = timed(model, batch, styles)
        plain = times["without privacy"]
        samples = len(batch[1])
        for style, row in rows.items():
            ratios = sorted(p / t for p, t in zip(plain, times[style], strict=True))
            row |= {"throughput": round(statistics.median(ratios), 3), "least": round(ratios[0], 3),
                    "most": round(ratios[-1], 3), "per_second": round(samples / statistics.median(times[style]), 2)}  # fmt: skip
            print(name, style, row, flush=True)
        found[name] = rows
        draw_throughput(figures, name, rows)
    return {"shapes": found, "rounds": ROUNDS, "seed": 0, "setting": setting()}


def draw_throughput(figures: Path, name: str, rows: dict[str, Any]) -> None:
    def lines(key: str) -> dict[str, Any]:
        uniform = [row for style, row in rows.items() if style.startswith("uniform") or style == "layer-wise"]
        return {
            "uniform:M, layer-wise": [(row["groups"], row[key]) for row in uniform],
            "planned:4": [(rows["planned:4"]["groups"], rows["planned:4"][key])],
        }

    for ending in ("png", "svg"):
        to = figures / f"{name.split()[0].strip(',').lower()}-throughput.{ending}"
        draw_trade(to, lines("peak"), lines("throughput"), rows["without privacy"]["peak"], name)


def timed(model: nn.Module, batch: Any, styles: dict[str, gc.Partition]) -> dict[str, list[float]]:
    """Seconds of one pass of each style, and of plain training, in each round.

    Of processor time: on one thread the same as those of a clock, but for what else the machine was doing.
    """

    def prepared(groups: gc.Partition | None) -> Callable[[], None]:
        own = copy.deepcopy(model)
        return one_pass(own, lambda: default_loss(own, batch), groups)

    runs = {"without privacy": prepared(None)} | {style: prepared(groups) for style, groups in styles.items()}
    return interleaved(runs, ROUNDS, time.process_time)


def seconds() -> dict[str, Any]:
    """Planning four groups, from a cold start of the profile."""
    nets = {
        "ViT-L, B=32": lambda: vit("vit-large", 224, 32, meta=True),
        "Llama-7B, T=2048, B=4": lambda: hf(llama(), 2048, 4, meta=True),
    }
    import resource

    found = {}
    for name, make in nets.items():
        model, batch = make()
        wall, processor = time.perf_counter(), time.process_time()
        gc.plan(model, batch, groups=4)
        found[name] = {"seconds": round(time.perf_counter() - wall, 2), "processor": round(time.process_time() - processor, 2),
                       "process_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)}  # fmt: skip
        print(name, found[name], flush=True)
    return found


def setting() -> dict[str, Any]:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {"torch": torch.__version__, "python": platform.python_version(), "processor": f"{platform.machine()}, {names[0]}",
            "cores": len(names), "threads": torch.get_num_threads()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts: dict[str, Callable[[], Any]] = {
        "seconds": seconds, "fact": fact, "boundaries": boundaries, "library": library,
        "accuracy": accuracy, "instantiated": instantiated,
        "curves": lambda: curves(given.figures), "throughput": lambda: throughput(given.figures),
    }  # fmt: skip
    parser.add_argument("--only", choices=parts, action="append")
    parser.add_argument("--out", type=Path, default=Path("docs/memory.json"))
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"))
    given = parser.parse_args()
    given.figures.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    facts["setting"] = setting()
    facts["bell"] = {str(n): str(bell(n)) for n in (9, 18, 24)}
    for name in given.only or parts:
        facts[name] = parts[name]()
        given.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
