"""Make the objects that train from settings: model, optimizer, mechanism, engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer

from ..clipping.adaptive import Adaptive
from ..engine.attach import attach
from ..engine.averages import WeightAverage
from ..engine.engine import Engine
from ..memory import planned
from ..models import build_model
from ..noise.grid import HardenedNoise
from ..partition.choose import partition
from ..partition.groups import Partition
from ..partition.styles import PLANNED
from ..privacy.bands import MOST
from ..privacy.mechanism import Mechanism
from ..privacy.planned import AUTO
from ..privacy.reservation import Reservation
from ..privacy.spent import warn_if_lax
from ..sampling.users import PerUser
from ..tasks import Task
from .company import company
from .config import RunConfig
from .drawing import give_back, set_aside
from .errors import ConfigError
from .optimizers import make_optimizer


@dataclass(frozen=True, eq=False)
class Trainer:
    """Holds what trains, put together and attached; ``groups`` are of ``model``, ``mechanism`` is the engine's.

    views: of each image; augment: how they are made. average: of the weights, if it is what will be released. reservation: of
        a budget that the steps are charged to.
    """

    model: nn.Module
    optimizer: Optimizer
    groups: Partition
    engine: Engine
    mechanism: Mechanism
    device: torch.device
    views: int = 1
    augment: str = "none"
    average: WeightAverage | None = None
    reservation: Reservation | None = None

    @property
    def released(self) -> nn.Module:
        """The model whose weights are released: what was trained, or a copy that holds the average."""
        return self.model if self.average is None else self.average.model()

    @property
    def noise_multiplier(self) -> float:
        assert self.mechanism.noise_multiplier is not None  # the engine refuses a mechanism without
        return self.mechanism.noise_multiplier


def build(
    config: RunConfig, task: Task, mechanism: Mechanism | None = None, reservation: Reservation | None = None
) -> Trainer:
    """Build and attach everything. ``mechanism``, ``reservation``: those of a run that goes on; of a new one they are made here.

    Torch's global generator (dropout, if the model has any) is seeded from the operating system and its
    state is never saved: with masks known beforehand, adding one sample to a batch would visibly shift the
    masks of those after it, and a step would depend on one sample through all of them.

    Raises:
        ValueError, TypeError: settings that don't fit together, naming the one.
    """
    together = company()

    def parts() -> tuple[nn.Module, Optimizer, Partition, Mechanism]:
        model = model_of(config, task).to(device_of(config.device))
        torch.manual_seed(secrets.randbits(63))
        optimizer = make_optimizer(config, model)
        groups = groups_of(config, task, model, optimizer)
        plan = mechanism or plan_of(config, task).calibrate(
            epsilon=config.epsilon, delta=config.delta, accountant=config.accountant
        )
        return model, optimizer, groups, plan

    model, optimizer, groups, plan = together.all(parts, "building the model")
    if mechanism is None:
        reservation = together.first(lambda: set_aside(config, task, plan), "the steps in the budget")
    try:
        engine = attached(config, task, model, optimizer, groups, plan, reservation)
        average = together.all(lambda: average_of(config, model), "the average of the weights")
    except BaseException:
        if mechanism is None:
            give_back(reservation)
        raise
    device = device_of(config.device)
    return Trainer(model, optimizer, groups, engine, plan, device, config.views, config.augment, average, reservation)


def average_of(config: RunConfig, model: nn.Module) -> WeightAverage | None:
    """Begin the average of a run's weights, if it has one."""
    return None if config.average == "none" else WeightAverage(model, config.average, steps=config.steps)


def plan_of(config: RunConfig, task: Task) -> Mechanism:
    """Make the mechanism of a run, without noise yet."""
    mechanism = Mechanism(
        dataset_size=task.units,
        expected_batch_size=config.batch_size,
        steps=config.steps,
        adjacency=config.adjacency,
        sampling=config.sampling,
        max_batch_size=config.max_batch_size,
        bands=config.bands,
        unit=task.unit,
    )
    warn_if_lax(config.delta, task.units, mechanism.unit)
    return mechanism


def attached(
    config: RunConfig, task: Task, model: nn.Module, optimizer: Optimizer, groups: Partition, mechanism: Mechanism,
    reservation: Reservation | None = None,
) -> Engine:  # fmt: skip
    """Make the engine of a run; ``groups`` are of ``model``, which runs inside a :class:`PerUser` if users are protected."""
    outer, prefix = (model, "") if task.unit == "sample" else (PerUser(model), "model.")
    named = tuple((group, tuple(prefix + name for name in members)) for group, members in groups.groups)
    methods = tuple((prefix + name, method) for name, method in groups.norm_methods)
    thresholds = Adaptive(start=config.thresholds, **config.adaptive) if config.adaptive else config.thresholds
    return attach(
        outer,
        optimizer,
        replace(groups, groups=named, norm_methods=methods),
        mechanism,
        clip=config.clip,
        thresholds=thresholds,
        allocation=config.allocation,
        noise=HardenedNoise() if config.hardened else None,
        budget=reservation,
        views=config.views,
    )


def model_of(config: RunConfig, task: Task) -> nn.Module:
    """Build the model of a run, with its first weights."""
    options = config.model_options
    return build_model(
        config.model,
        input_shape=task.input_shape,
        num_classes=task.num_classes,
        vocabulary=task.vocabulary,
        patch_size=options.get("patch_size"),
        image_size=options.get("image_size"),
        activation=options.get("activation"),
        seed=config.seed,
    )


def groups_of(config: RunConfig, task: Task, model: nn.Module, optimizer: Optimizer | None) -> Partition:
    """Make the groups of a run; a planned style is planned for a full microbatch, of which only shapes matter."""
    return groups_for(config, task.input_shape, task.vocabulary, model, optimizer)


def groups_for(
    config: RunConfig, input_shape: Sequence[int], vocabulary: int | None, model: nn.Module, optimizer: Optimizer | None
) -> Partition:
    """Make the groups as :func:`groups_of`, without the task."""
    if isinstance(config.clipping, str) and config.clipping.startswith(PLANNED):
        kind = torch.float32 if vocabulary is None else torch.int64
        rows = config.microbatch * config.views
        inputs = torch.empty(rows, *input_shape, dtype=kind, device="meta")
        labels = torch.empty(rows, dtype=torch.int64, device="meta")
        bands = MOST if config.bands == AUTO else int(config.bands)  # at most, where they are yet to be found
        return planned(model, config.clipping, (inputs, labels), optimizer, bands)
    return partition(model, config.clipping)


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but torch sees no CUDA device here; use --device cpu")
    return torch.device(name)
