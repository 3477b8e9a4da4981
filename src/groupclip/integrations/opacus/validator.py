"""``ModuleValidator``: which layers mix the samples of a batch, and what may stand in their place."""

from __future__ import annotations

import copy
import math
from itertools import chain

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ...engine.checks import statistics_problem
from ...errors import PrivacyViolation

_INSTANCE_NORM = {nn.BatchNorm1d: nn.InstanceNorm1d, nn.BatchNorm2d: nn.InstanceNorm2d, nn.BatchNorm3d: nn.InstanceNorm3d}


class ModuleValidator:
    """Finds (PrivacyViolation) and replaces layers that keep statistics of the batch. Every other layer trains as it is."""

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[PrivacyViolation]:
        """Return one error for each layer of ``module`` that can't train privately.

        Args:
            strict: raise them, as one, instead.

        Raises:
            PrivacyViolation: with ``strict``, where there is one.
        """
        errors = []
        for name, part in module.named_modules():
            problem = statistics_problem(part)
            if problem is not None:
                errors.append(PrivacyViolation(f"module {name!r} is {type(part).__name__}: {problem}"))
        if strict and errors:
            raise PrivacyViolation("; ".join(map(str, errors)) + ". ModuleValidator.fix(module) replaces such layers")
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Return whether :meth:`validate` finds nothing in ``module``."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False) -> nn.Module:
        """Return a copy in which BatchNorm is GroupNorm, and InstanceNorm keeps no statistics. The module itself stays.

        New layers begin with weight 1 and bias 0: what BatchNorm had learnt isn't carried over.

        Args:
            num_groups: of each GroupNorm; the largest divisor that 32 and the channels have in common by default.
            replace_bn_with_in: InstanceNorm without weights in the place of BatchNorm instead.

        Raises:
            ValueError: both; or a number of groups that doesn't divide the channels.
        """
        if replace_bn_with_in and num_groups is not None:
            raise ValueError("num_groups is of GroupNorm, and replace_bn_with_in=True puts InstanceNorm there: leave one out")
        fixed = copy.deepcopy(module)
        for name, part in list(fixed.named_modules()):
            new = _replacement(part, num_groups, replace_bn_with_in)
            if new is None:
                continue
            new.train(part.training)
            held = next(chain(part.parameters(), part.buffers()), None)
            if held is not None:
                new.to(held.device, held.dtype if held.is_floating_point() else None)
            if not name:
                return new
            parent, _, last = name.rpartition(".")
            fixed.get_submodule(parent).register_module(last, new)
        return fixed

    @classmethod
    def fix_and_validate(
        cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False
    ) -> nn.Module:
        """Do :meth:`fix` (``module``, ``num_groups``, ``replace_bn_with_in``), then :meth:`validate` strictly."""
        fixed = cls.fix(module, num_groups=num_groups, replace_bn_with_in=replace_bn_with_in)
        cls.validate(fixed, strict=True)
        return fixed


def _replacement(part: nn.Module, num_groups: int | None, instance: bool) -> nn.Module | None:
    if isinstance(part, _BatchNorm):
        channels = part.num_features
        if not instance:
            return nn.GroupNorm(num_groups or math.gcd(32, channels), channels, affine=part.affine)
        kind = next((new for old, new in _INSTANCE_NORM.items() if isinstance(part, old)), None)
        if kind is None:
            raise ValueError(
                f"replace_bn_with_in=True, and {type(part).__name__} doesn't say of how many dimensions its input is: leave it "
                "out, for GroupNorm"
            )
        return kind(channels)
    if isinstance(part, _InstanceNorm) and part.track_running_stats:
        new = type(part)(part.num_features, part.eps, affine=part.affine, track_running_stats=False)
        new.load_state_dict(part.state_dict() if part.affine else {}, strict=False)
        return new
    return None
