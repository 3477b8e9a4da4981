"""The rows of the table: what is known to be best, where that is from, and how groupclip is run on it. Data, not code."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..settings import TrainSettings
from .networks import Conv, Dense, Network, Pool, Spread

TRAMER = "Tramèr and Boneh 2021, whose batches were shuffled and counted as Poisson samples"
PAPERNOT = "Papernot et al. 2020, who begin from JAX's example, whose batches are shuffled and counted as Poisson samples"
DE = "De et al. 2022"
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    name: as it is asked for. data, method: in words.
    file: of the data, in the folder that is given. features: a key of :data:`groupclip.paper.records.features.MAKERS`.
    best: the best known result in percent, with its source; None where none is known that compares.
    network: what is trained on the features; None: a linear model (without features, a Wide ResNet on views of the images).
    settings: how groupclip trains.
    first: it is trained on so many records alone, the first ones; None: on all.
    gpu: it needs a GPU for hours, and hasn't been run. records: how many are trained on, for a dry run of such a row.
    notes: what a reader has to know.
    """

    name: str
    data: str
    method: str
    epsilon: float
    delta: float
    file: str
    features: str = ""
    best: float | None = None
    source: str = ""
    network: Network | None = None
    settings: TrainSettings
    first: int | None = None
    gpu: bool = False
    records: int = 0
    notes: tuple[str, ...] = ()


SIX_BITS = "the pixels of this copy of CIFAR-10 are rounded to 6 bits"
LAST_TENTH = "run on the first 50,000 training images; the last 10,000 of them are held out, for the test images weren't at hand"
NARROW = "the best known result scales by noisy statistics of the data, and has a first convolution of 3 x 3 places"
MIRRORED = "the best known result has no features of mirror images, and scales by noisy statistics of the data"
CLOSE = "ImageNet shows the classes of CIFAR-10, so this public encoder is a strong help"
PHRASES = "the unit is one phrase of a review, not a sentence or its author"


def _linear(epsilon: float, delta: float, batch: int, steps: int, lr: float) -> TrainSettings:
    """Return settings of the kind that ``groupclip advise --start linear`` gives, with an average of the weights."""
    return TrainSettings(
        epsilon=epsilon, delta=delta, batch_size=batch, steps=steps, lr=lr, microbatch=2048, optimizer="sgd", momentum=0.9,
        clipping="all-layer", clip="automatic", thresholds=1.0, average="ema:0.9",
    )  # fmt: skip


def _scattering(name: str, data: str, file: str, best: float, batch: int, steps: int, lr: float, *notes: str) -> Row:
    return Row(
        name=name, data=data, method="scattering (J = 2), group normalisation, linear", epsilon=3.0, delta=1e-5, file=file,
        features="scattering", best=best, source=TRAMER, settings=_linear(3.0, 1e-5, batch, steps, lr), notes=notes,
    )  # fmt: skip


def _convolutional(epsilon: float, lr: float, clip: str) -> TrainSettings:
    """Return settings of a network: smaller batches and more steps than of a linear model, at a rate that falls to zero."""
    return replace(_linear(epsilon, 1e-5, 2048, 500, lr), microbatch=512, schedule="linear", clip=clip)


def _tempered(name: str, data: str, epsilon: float, best: float, settings: TrainSettings, *notes: str) -> Row:
    return Row(
        name=f"{name}-tempered", data=data, method="CNN of tanh on pixels", epsilon=epsilon, delta=1e-5,
        file=f"{name.replace('-', '_')}.npz", features="pixels", best=best, source=PAPERNOT, network=TEMPERED, settings=settings,
        notes=notes,
    )  # fmt: skip


def _transfer(epsilon: float, lr: float) -> Row:
    return Row(
        name=f"cifar10-transfer-{epsilon:g}", data="CIFAR-10", method="frozen EfficientNet-Lite0 (ImageNet) at 96 pixels, linear",
        epsilon=epsilon, delta=1e-5, file="cifar10.npz", features="efficientnet",
        settings=_linear(epsilon, 1e-5, 6250, 200, lr), notes=(SIX_BITS, CLOSE),
    )  # fmt: skip


#: Of Tramer and Boneh 2021 on grey images: features of 7 x 7 places.
GREY_CNN = Network((81, 7, 7), (Conv(16, 3, 2, 1), Conv(32, 3, 1, 1), Dense(32)))
#: Theirs on colours has a first convolution of 3 x 3 places, which takes several times as long, and then the largest of 2 x 2.
CIFAR_CNN = Network((243, 8, 8), (Conv(64, 1), Pool("mean", 2, 2), Conv(64, 3, 1, 1)))
#: Of Papernot et al. 2020, on grey images and on colours.
TEMPERED = Network((1, 28, 28), (Conv(16, 8, 2, 3), Pool("max", 2, 1), Conv(32, 4, 2), Pool("max", 2, 1), Dense(32)))
TEMPERED_CIFAR = Network(
    (3, 32, 32),
    (
        Conv(32, 3, 1, 1), Conv(32, 3, 1, 1), Pool("mean", 2, 2), Conv(64, 3, 1, 1), Conv(64, 3, 1, 1), Pool("mean", 2, 2),
        Conv(128, 3, 1, 1), Conv(128, 3, 1, 1), Pool("mean", 2, 2), Conv(256, 3, 1, 1), Conv(10, 3, 1, 1), Spread(),
    ),
)  # fmt: skip

_WRN = TrainSettings(
    epsilon=8.0, delta=1e-5, batch_size=4096, steps=2500, lr=4.0, microbatch=64, optimizer="sgd", clipping="all-layer",
    clip="abadi", thresholds=1.0, average="ema:0.9999", views=16,
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    _scattering("mnist", "MNIST", "mnist.npz", 98.7, 8192, 300, 1.4, LAST_TENTH),
    _scattering("fashion-mnist", "Fashion-MNIST", "fashion_mnist.npz", 89.7, 8192, 293, 1.6),
    _scattering("cifar10", "CIFAR-10", "cifar10.npz", 67.0, 6250, 200, 0.8, SIX_BITS),
    Row(
        name="cifar10-mirrored", data="CIFAR-10", method="scattering that mirror images share, scaled by constants, linear",
        epsilon=3.0, delta=1e-5, file="cifar10.npz", features="mirrored", best=67.0, source=TRAMER,
        settings=replace(_linear(3.0, 1e-5, 6250, 200, 0.8), average="tail:0.5"), notes=(SIX_BITS, MIRRORED),
    ),
    Row(
        name="mnist-cnn", data="MNIST", method="scattering (J = 2), group normalisation, CNN", epsilon=3.0, delta=1e-5,
        file="mnist.npz", features="scattering", best=98.7, source=TRAMER, network=GREY_CNN,
        settings=_convolutional(3.0, 0.5, "abadi"), notes=(LAST_TENTH,),
    ),
    Row(
        name="cifar10-cnn", data="CIFAR-10", method="scattering scaled by constants, CNN", epsilon=3.0, delta=1e-5,
        file="cifar10.npz", features="scaled", best=69.3, source=TRAMER, network=CIFAR_CNN,
        settings=_convolutional(3.0, 0.8, "automatic"), notes=(SIX_BITS, NARROW),
    ),
    _tempered("mnist", "MNIST", 2.93, 98.1, _convolutional(2.93, 0.5, "abadi"), LAST_TENTH),
    _tempered("fashion-mnist", "Fashion-MNIST", 2.7, 86.1, _convolutional(2.7, 0.5, "abadi")),
    Row(
        name="cifar10-tempered", data="CIFAR-10", method="CNN of tanh on pixels", epsilon=7.53, delta=1e-5, file="cifar10.npz",
        best=66.2, source=PAPERNOT, network=TEMPERED_CIFAR, settings=_convolutional(7.53, 0.5, "abadi"), gpu=True,
        records=50_000, notes=(SIX_BITS, "takes hours on two cores; settings by analogy, unrun"),
    ),
    _transfer(1.0, 0.58),
    _transfer(2.0, 1.1),
    _transfer(3.0, 1.7),
    Row(
        name="sst2", data="SST-2", method="frozen MiniLM-L6, linear", epsilon=3.0, delta=1e-5, file="sst2.jsonl.gz",
        features="minilm", settings=_linear(3.0, 1e-5, 8419, 200, 2.2), notes=(PHRASES,),
    ),
    Row(
        name="sst2-19000", data="SST-2, the first 19,000 phrases", method="frozen MiniLM-L6, linear", epsilon=3.0, delta=1e-5,
        file="sst2.jsonl.gz", features="minilm", settings=_linear(3.0, 1e-5, 2375, 200, 1.9), first=19_000, notes=(PHRASES,),
    ),
    Row(
        name="cifar10-wrn", data="CIFAR-10", method="WRN-16-4 from scratch, 16 views, averaged weights", epsilon=8.0, delta=1e-5,
        file="cifar10.npz", best=79.5, source=DE, settings=_WRN, gpu=True, records=50_000,
        notes=(SIX_BITS, "needs a GPU for hours; settings of De et al. and of Sander et al. 2022, unrun"),
    ),
)  # fmt: skip


def named(names: tuple[str, ...]) -> list[Row]:
    """Return the rows of these names, or all. Raises ValueError for an unknown one."""
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no row {unknown[0]!r}; rows: {', '.join(known)}")
    return [known[name] for name in names] if names else list(ROWS)
