"""Arguments of Opacus that can't be right here: what was found, why not, and what to write instead."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.loss import _Loss
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, WeightedRandomSampler

from ...distributed.ranks import ranks
from ...errors import PrivacyViolation
from ...sampling.weighted import WEIGHTED

_log = logging.getLogger("groupclip")

#: Ways of Opacus to per-sample gradients: here there is one, so what these give is the same.
ALIKE = ("hooks", "functorch", "ew", "ghost")
_PROCESSES = (
    "behind Opacus's names one process trains. For several, wrap the model by DistributedDataParallel or fully_shard, and use "
    "gc.attach in a loop of your own"
)
_MODES = {
    "ghost_fsdp": f"{_PROCESSES}; on one process write grad_sample_mode='ghost'",
    "ghost_tp": f"{_PROCESSES}; on one process write grad_sample_mode='ghost'",
    "no_op": (
        "there the user fills p.grad_sample, which nobody can check: leave it out, for per-sample gradients of any layer are "
        "computed here"
    ),
}
_ADAPTIVE = (
    "clipping='adaptive' moves the threshold by a count of clipped samples, of loss.backward() passes that may fail half-way. "
    "Write clipping='flat', or gc.attach(.., thresholds=gc.Adaptive()) with engine.backward(losses) in a loop of your own, where "
    "the counts are part of the same epsilon"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Holds the arguments of one ``make_private`` that may be wrong; see there."""

    batch_first: bool
    loss_reduction: str
    poisson_sampling: bool
    clipping: str
    noise_generator: object
    grad_sample_mode: str
    rand_on_empty: bool
    adaptive: tuple[object, ...]
    groups: object

    def check(self) -> None:
        """Refuse options that would break the guarantee, or that mean nothing here.

        Raises:
            PrivacyViolation, ValueError: the message names the argument and the fix.
        """
        if ranks() is not None:
            raise PrivacyViolation(f"this is one of several processes, and {_PROCESSES}")
        if not self.poisson_sampling:
            raise PrivacyViolation(
                "poisson_sampling=False keeps shuffled batches of one size, which protect less than the epsilon that is told: the "
                "accounting is of Poisson samples. Leave it out; for batches of one size plan "
                "gc.Mechanism(sampling='without-replacement', adjacency='replace-one', ..) in a loop of your own"
            )
        if self.noise_generator is not None:
            raise PrivacyViolation(
                "noise_generator= makes noise that its seed gives again, so whoever knows the seed subtracts it: leave it out. For "
                "a test that repeats its noise: gc.attach(.., noise=groupclip.noise.InsecureNoise(seed)), which claims no epsilon"
            )
        if self.rand_on_empty:
            raise PrivacyViolation(
                "rand_on_empty=True trains on a random row exactly where no sample was drawn, so one sample moves the sum by up to "
                "two thresholds, and the noise is for one: leave it out. An empty batch has zero rows, and is a step"
            )
        if not self.batch_first:
            raise ValueError(
                "batch_first=False: dimension 0 of the model's inputs must be the sample. Leave it out, and transpose inside the "
                "model's forward (x.transpose(0, 1)); layers of torch may keep their batch_first=False there"
            )
        if self.loss_reduction not in ("mean", "sum"):
            raise ValueError(
                f"loss_reduction={self.loss_reduction!r} must be 'mean' or 'sum', whichever the criterion does"
            )
        if self.clipping == "adaptive" or any(value is not None for value in self.adaptive):
            raise PrivacyViolation(_ADAPTIVE)
        if self.clipping not in ("flat", "per_layer"):
            raise ValueError(f"clipping={self.clipping!r} must be 'flat' or 'per_layer'; groups= takes any style of groupclip")
        if self.clipping == "per_layer" and self.groups is not None:
            raise ValueError(
                "clipping='per_layer' is a grouping already, of one group a parameter: leave it out, or groups="
            )
        if self.grad_sample_mode in _MODES:
            raise PrivacyViolation(f"grad_sample_mode={self.grad_sample_mode!r}: {_MODES[self.grad_sample_mode]}")
        if self.grad_sample_mode not in ALIKE:
            raise ValueError(f"grad_sample_mode={self.grad_sample_mode!r} is unknown; use one of {', '.join(ALIKE)}")


def check_criterion(criterion: object, loss_reduction: str) -> None:
    """Refuse a criterion in which a sample's weight hangs on the other samples, or that isn't the declared reduction.

    Raises:
        PrivacyViolation, ValueError: it is one.
    """
    if not isinstance(criterion, _Loss):
        return
    if criterion.reduction != loss_reduction:
        raise ValueError(
            f"criterion has reduction={criterion.reduction!r}, and loss_reduction={loss_reduction!r}: write one in both"
        )
    if isinstance(criterion, (nn.CrossEntropyLoss, nn.NLLLoss)) and criterion.weight is not None and loss_reduction == "mean":
        raise PrivacyViolation(
            f"criterion={type(criterion).__name__}(weight=..) with reduction='mean' divides by the weights of the whole batch, so "
            "each sample's gradient depends on the other samples' classes. Write reduction='sum' and loss_reduction='sum', and a "
            "learning rate that is smaller by the batch size"
        )


def check_loader(loader: Any) -> None:
    """Refuse a loader that chooses batches in a way that Poisson samples can't follow.

    Raises:
        TypeError, PrivacyViolation: it does; the message names the fix.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"data_loader is {type(loader).__name__}: pass a torch DataLoader, of which data set, batch size, collate function and "
            "workers are used"
        )
    sampler = loader.sampler
    if isinstance(sampler, WeightedRandomSampler):
        raise PrivacyViolation(WEIGHTED)
    if loader.batch_size is None:
        raise PrivacyViolation(
            f"data_loader has batch_sampler={type(loader.batch_sampler).__name__} or no batches at all, and batches are drawn "
            "here, by chance alone: write DataLoader(dataset, batch_size=B)"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"data_loader reads {type(loader.dataset).__name__}, a stream, which has no index, and each sample has to be drawn "
            "independently of the others: load it into a map-style data set (len and [])"
        )
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    if not plain:
        raise PrivacyViolation(
            f"data_loader has sampler={type(sampler).__name__}, and batches are drawn here, by chance alone: leave it out. To "
            "train on some of the records, pass torch.utils.data.Subset(dataset, rows)"
        )
    if loader.worker_init_fn is not None:
        raise ValueError(
            "data_loader has worker_init_fn=, which the processes that read here don't call: do it in the data set "
            "(__getitem__ at its first call)"
        )
    if loader.generator is not None:
        _log.warning(
            "the loader's generator= isn't used: batches are drawn under a secret key, for whoever can draw them again knows who "
            "was in them"
        )

