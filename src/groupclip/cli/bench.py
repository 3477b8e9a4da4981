"""``groupclip bench``: measure time and memory of clipping over plain training, by style."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from .arguments import arguments_at_fault, device_named, print_json

_STYLES = "all-layer,uniform:2,uniform:3,uniform:4,uniform:6,block-wise,layer-wise,param-wise"
_GPT2 = {"gpt2-small": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20)}
_ROBERTA = {"roberta-base": (768, 12, 12), "roberta-large": (1024, 24, 16)}


@click.command("bench", short_help="Measure time and memory of passes that clip.")
@click.option(
    "--workload", required=True, help="Name a model of groupclip, e.g. vit-small; or roberta-base, gpt2-small ..."
)
@click.option(
    "--batch", "samples", type=click.IntRange(min=1), default=8, show_default=True, help="Set the physical batch."
)
@click.option("--styles", default=_STYLES, show_default=True, help="Choose clipping styles, with commas between them.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Take so many rounds.")
@click.option(
    "--image-size",
    type=click.IntRange(min=1),
    help="Set the side of the images in pixels. Default: the size that the model is built for.",
)
@click.option(
    "--tokens", type=click.IntRange(min=1), help="Set the length of the texts. Default: 256, and 100 for GPT2."
)
@click.option("--device", default="auto", show_default=True, help="Choose the device: auto, cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    workload: str, samples: int, styles: str, rounds: int, image_size: int | None, tokens: int | None, device: str, as_json: bool
) -> None:  # fmt: skip
    """Measure forward and backward passes with clipped gradients over plain ones: time, throughput and peak memory.

    Weights and inputs are random. Every style takes its turn in every round of one run. No noise is added: a step draws noise
    once, however many passes it has.

    \b
    Example:
      groupclip bench --workload vit-small --batch 4
      groupclip bench --workload vit-large --batch 32 --device cuda
    """
    with arguments_at_fault():
        import torch

        from ..paper.bench import bench as timed
        from ..paper.selection import split
        from ..run.environment import environment

        where = device_named(device)
        model, batch = _make(workload, samples, image_size, tokens, where)
        rows = timed(model, batch, split(styles), rounds=rounds)
        setting = environment(torch.device(where))
    if as_json:
        print_json(
            {
                "workload": workload,
                "batch": samples,
                "rounds": rounds,
                "ways": [asdict(r) for r in rows],
                "environment": setting,
            }
        )
        return
    click.echo(f"{workload}, batch {samples}, {rounds} rounds, {setting['device']}, {setting['threads']} threads\n")
    click.echo(f"{'groups':>16} {'M':>4} {'time / plain':>13} {'of all rounds':>15} {'samples/s':>10} {'peak, MB':>10}")
    for r in rows:
        click.echo(
            f"{r.style:>16} {r.groups or '':>4} {r.ratio:>13.3f} {r.least:>7.3f}-{r.most:<7.3f} {r.per_second:>10.2f} "
            f"{r.peak_bytes / 1e6:>10,.1f}"
        )


def _make(workload: str, samples: int, image_size: int | None, tokens: int | None, device: str) -> tuple[Any, Any]:
    """Return model and batch, (inputs, labels), with random weights."""
    import torch

    torch.manual_seed(0)
    if workload in _GPT2 or workload in _ROBERTA:
        if image_size is not None:
            raise ValueError(f"--image-size means nothing to {workload}; set --tokens")
        length = tokens or (100 if workload in _GPT2 else 256)
        return _language(workload, samples, length, device)
    from ..models import MODELS, build_model

    if workload not in MODELS:
        known = ", ".join([*MODELS, *_ROBERTA, *_GPT2])
        raise ValueError(f"--workload {workload!r} is unknown; there are {known}")
    spec = MODELS[workload]
    shape = spec.input_shape if image_size is None else (spec.input_shape[0], image_size, image_size)
    if len(shape) == 1:
        shape = (tokens or shape[0],)
    elif tokens is not None:
        raise ValueError(f"--tokens means nothing to {workload}; set --image-size")
    vocabulary = 30_522 if len(shape) == 1 else None
    model = build_model(workload, input_shape=shape, num_classes=spec.num_classes, vocabulary=vocabulary, seed=0)
    inputs = torch.randn(samples, *shape) if vocabulary is None else torch.randint(1, vocabulary, (samples, *shape))
    return model.to(device), (inputs.to(device), torch.randint(spec.num_classes, (samples,), device=device))


def _language(workload: str, samples: int, length: int, device: str) -> tuple[Any, Any]:
    """Return a language model of transformers, or a classifier, of the published shape."""
    import torch

    from ..paper.source import needed

    library = needed("transformers", f"workload '{workload}'")
    if workload in _GPT2:
        width, depth, heads = _GPT2[workload]
        config: Any = library.GPT2Config(n_embd=width, n_layer=depth, n_head=heads, use_cache=False)
        model: Any = library.GPT2LMHeadModel(config)
    else:
        width, depth, heads = _ROBERTA[workload]
        config = library.RobertaConfig(
            vocab_size=50_265, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * width,
            max_position_embeddings=514, type_vocab_size=1,
        )  # fmt: skip
        model = library.RobertaForSequenceClassification(config)
    ids = torch.randint(5, config.vocab_size, (samples, length), device=device)
    labels = ids if workload in _GPT2 else torch.zeros(samples, dtype=torch.int64, device=device)
    return model.train().to(device), ({"input_ids": ids}, labels)
