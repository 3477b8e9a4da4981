"""``PrivacyEngine``: the calls of Opacus's, around one engine of groupclip."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import IO, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...arguments import positive
from ...clipping.functions import LossReduction
from ...engine.attach import attach
from ...engine.engine import Engine
from ...errors import GroupClipError, PrivacyViolation
from ...noise.grid import HardenedNoise
from ...privacy.mechanism import Mechanism
from .accountant import FIGURES, Accountant
from .arguments import Options, check_criterion, check_loader
from .batches import PrivateLoader
from .optimizer import PrivateOptimizer
from .validator import ModuleValidator

#: Epochs that are planned where nobody says how many. Epsilon counts the steps that are made.
OPEN_EPOCHS = 1000


class Attached:
    """What ``wrap_model=False`` returns in the model's place: the model itself stays the user's."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def cleanup(self) -> None:
        """Make model and optimizer plain again."""
        self.engine.detach()


class PrivacyEngine:
    """Makes one model, its optimizer and its loader private.

    Args:
        accountant: whose figure :meth:`get_epsilon` tells: "prv" (the default): the smaller of two upper bounds, PLD and RDP;
            "rdp": RDP's.
        secure_mode: noise on a grid (:class:`groupclip.HardenedNoise`), against attacks on floating point. The noise comes from
            a cryptographic source either way.

    Raises:
        ValueError: an unknown accountant, or "gdp", which is no upper bound.
    """

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False) -> None:
        self.accountant = Accountant(accountant)
        self.secure_mode = secure_mode

    @property
    def engine(self) -> Engine:
        """The engine of groupclip: ledger, statement, ``detach()``. PrivacyViolation before ``make_private``."""
        if self.accountant.engine is None:
            raise PrivacyViolation("nothing was made private by this PrivacyEngine yet: call make_private first")
        return self.accountant.engine

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        groups: Any = None,
        target_unclipped_quantile: float | None = None,
        clipbound_learning_rate: float | None = None,
        max_clipbound: float | None = None,
        min_clipbound: float | None = None,
        unclipped_num_std: float | None = None,
    ) -> tuple[Any, ...]:
        """Make model, optimizer and loader private. The user's ``loss.backward()`` and ``optimizer.step()`` stay.

        Args:
            module: trains in place; it isn't wrapped.
            optimizer: over the module's trainable parameters.
            criterion: of ``grad_sample_mode="ghost"``, which returns it; None: cross-entropy, as Opacus has it.
            data_loader: of torch, or one that another PrivacyEngine returned, whose own loader is taken. Batches are drawn as
                Poisson samples with q = batch_size / len(dataset), ``len(loader)`` of them an epoch.
            noise_multiplier: sigma; 0 for a run without noise, of which no epsilon is told. 1,000 epochs are planned, of which
                epsilon counts the steps that are made.
            max_grad_norm: R of a sample's whole gradient; with ``clipping="per_layer"`` a list, one number for each trainable
                parameter. Samples are clipped by min(1, R / norm).
            loss_reduction: what the loss is over the samples of a batch.
            clipping: "flat", one threshold for a sample's whole gradient, or "per_layer".
            grad_sample_mode: "hooks", "functorch" and "ew" give the same; "ghost" gives the criterion too.
            wrap_model: False returns an object with ``cleanup()`` in the module's place.
            batch_first, poisson_sampling, noise_generator, rand_on_empty: leave them out; other values are refused with the fix.
            target_unclipped_quantile, clipbound_learning_rate, max_clipbound, min_clipbound, unclipped_num_std: the same.
            groups: groupclip's own: a style such as "uniform:4" for :func:`groupclip.partition`; each of the M groups has
                R / sqrt(M). It takes less memory, and the same epsilon.

        Returns:
            (module, optimizer, loader); with "ghost" (module, optimizer, criterion, loader).

        Raises:
            PrivacyViolation, ValueError, TypeError: an option that can't be right: the message names it and the fix. Nothing is
                changed then.
            CoverageError: the optimizer's parameters aren't the module's trainable ones.
        """
        options = Options(
            batch_first=batch_first, loss_reduction=loss_reduction, poisson_sampling=poisson_sampling, clipping=clipping,
            noise_generator=noise_generator, grad_sample_mode=grad_sample_mode, rand_on_empty=rand_on_empty, groups=groups,
            adaptive=(
                target_unclipped_quantile, clipbound_learning_rate, max_clipbound, min_clipbound, unclipped_num_std,
            ),
        )  # fmt: skip
        plan = self._plan(options, data_loader, OPEN_EPOCHS)
        return self._attach(
            options, module, optimizer, criterion, data_loader, replace(plan, noise_multiplier=noise_multiplier),
            max_grad_norm, wrap_model=wrap_model,
        )  # fmt: skip

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        groups: Any = None,
        target_unclipped_quantile: float | None = None,
        clipbound_learning_rate: float | None = None,
        max_clipbound: float | None = None,
        min_clipbound: float | None = None,
        unclipped_num_std: float | None = None,
    ) -> tuple[Any, ...]:
        """Do :meth:`make_private` with the least noise that keeps ``epochs`` epochs within a budget.

        Args:
            target_epsilon, target_delta: the budget. A step past ``epochs * len(loader)`` raises BudgetExceeded.

        All other arguments are as of :meth:`make_private` (``module``, ``optimizer``, ``criterion``, ``data_loader``,
        ``max_grad_norm``, ``loss_reduction``, ``clipping``, ``grad_sample_mode``, ``wrap_model``, ``groups``), and so is what is
        refused (``batch_first``, ``poisson_sampling``, ``noise_generator``, ``rand_on_empty``, and the rest).

        Raises:
            ValueError: the budget can't be met; and as :meth:`make_private`.
        """
        options = Options(
            batch_first=batch_first, loss_reduction=loss_reduction, poisson_sampling=poisson_sampling, clipping=clipping,
            noise_generator=noise_generator, grad_sample_mode=grad_sample_mode, rand_on_empty=rand_on_empty, groups=groups,
            adaptive=(
                target_unclipped_quantile, clipbound_learning_rate, max_clipbound, min_clipbound, unclipped_num_std,
            ),
        )  # fmt: skip
        plan = self._plan(options, data_loader, positive("epochs", epochs))
        figure = FIGURES[self.accountant.mechanism()]
        plan = plan.calibrate(epsilon=target_epsilon, delta=target_delta, accountant=figure)
        return self._attach(
            options, module, optimizer, criterion, data_loader, plan, max_grad_norm, wrap_model=wrap_model
        )

    def _plan(self, options: Options, loader: DataLoader[Any], epochs: float) -> Mechanism:
        """Check what doesn't need the model, and return the plan without noise."""
        if self.accountant.engine is not None:
            raise GroupClipError(
                "this PrivacyEngine has made a model private already, and tells that one's epsilon: make a PrivacyEngine for each "
                "model. What two of them spend on the same records together is counted by gc.Budget"
            )
        options.check()
        loader = loader.loader if isinstance(loader, PrivateLoader) else loader  # of an earlier run of the same program
        check_loader(loader)
        size, steps = len(loader.dataset), math.ceil(epochs * len(loader))  # pyright: ignore[reportArgumentType]
        return Mechanism(dataset_size=size, expected_batch_size=min(size, loader.batch_size or 1), steps=steps)

    def _attach(
        self, options: Options, module: nn.Module, optimizer: Optimizer, criterion: Any, loader: DataLoader[Any],
        plan: Mechanism, max_grad_norm: float | list[float], *, wrap_model: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        if isinstance(optimizer, PrivateOptimizer):
            optimizer = optimizer.original_optimizer
        loader = loader.loader if isinstance(loader, PrivateLoader) else loader
        criterion = nn.CrossEntropyLoss(reduction=options.loss_reduction) if criterion is None else criterion
        check_criterion(criterion, options.loss_reduction)
        style = "param-wise" if options.clipping == "per_layer" else "all-layer"
        groups: Any = style if options.groups is None else options.groups
        engine = attach(
            module, optimizer, groups, plan, clip="abadi", thresholds=max_grad_norm,
            loss_reduction=cast(LossReduction, options.loss_reduction),
            noise=HardenedNoise() if self.secure_mode else None,
        )  # fmt: skip
        self.accountant.engine = engine
        private = PrivateOptimizer(optimizer, engine, max_grad_norm, options.loss_reduction)
        self._loader = PrivateLoader(loader, engine)
        model = module if wrap_model else Attached(engine)
        if options.grad_sample_mode == "ghost":
            return model, private, criterion, self._loader
        return model, private, self._loader

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon of the steps so far at ``delta``: see :meth:`Accountant.get_epsilon`."""
        return self.accountant.get_epsilon(delta)

    def statement(self, delta: float) -> str:
        """Tell the guarantee of the steps so far in words, at ``delta``."""
        return self.engine.statement(delta=delta)

    # ------------------------------------------------------------------ models

    def is_compatible(self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> bool:
        """Return whether every layer of the module can train privately; ``optimizer`` and ``data_loader`` aren't looked at."""
        return ModuleValidator.is_valid(module)

    def validate(self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> None:
        """Raise PrivacyViolation if a layer of the module can't train privately; arguments as of :meth:`is_compatible`."""
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """Return a copy of the module with such layers replaced: :meth:`ModuleValidator.fix`."""
        return ModuleValidator.fix_and_validate(module)

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, *, path: str | os.PathLike[str] | IO[bytes], module: nn.Module, optimizer: Optimizer | None = None,
        checkpoint_dict: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Write weights, optimizer and what is spent. A later step isn't known to this file: it stays spent all the same.

        Args:
            path: of the file, or a file that is open for writing. module, optimizer: that make_private returned.
            checkpoint_dict: further entries, which ``torch.load(weights_only=True)`` can read.

        Raises:
            OSError: the file can't be written.
        """
        entries = dict(checkpoint_dict or {})
        entries["module_state_dict"] = module.state_dict()
        entries[_SPENT] = self.engine.state_dict()
        if optimizer is not None:
            entries["optimizer_state_dict"] = optimizer.state_dict()
        torch.save(entries, path)

    def load_checkpoint(
        self, *, path: str | os.PathLike[str] | IO[bytes], module: nn.Module, optimizer: Optimizer | None = None
    ) -> dict[str, Any]:  # fmt: skip
        """Go on from a checkpoint, after the same ``make_private``. Batches and noise come under new keys.

        Args:
            path, module, optimizer: as of :meth:`save_checkpoint`.

        Returns:
            All entries of the file.

        Raises:
            PrivacyViolation: a file without what was spent, or of another plan; weights stay as they are then.
        """
        entries = torch.load(path, weights_only=True)
        if _SPENT not in entries:
            raise PrivacyViolation(
                f"{path} doesn't say what its weights have spent: it is no checkpoint of this PrivacyEngine (Opacus's holds no "
                "plan). Load the weights before make_private, and add up both epsilons"
            )
        self.engine.load_state_dict(entries[_SPENT])
        self._loader.begin_again()
        module.load_state_dict(entries["module_state_dict"])
        if optimizer is not None and "optimizer_state_dict" in entries:
            optimizer.load_state_dict(entries["optimizer_state_dict"])
        return entries


_SPENT = "groupclip_engine"
