"""groupclip behind the names of Opacus 1.6, so that a program changes its import lines alone. Opacus itself isn't needed.

What can't be right is refused by a sentence that names the argument and the fix; docs/migration.md has every name and number.
"""

from typing import Any, NoReturn

from ...errors import PrivacyViolation
from .accountant import Accountant
from .layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from .memory import BatchMemoryManager
from .optimizer import PrivateOptimizer as DPOptimizer
from .privacy_engine import PrivacyEngine
from .validator import ModuleValidator

__all__ = [
    "DPGRU",
    "DPLSTM",
    "DPRNN",
    "Accountant",
    "BatchMemoryManager",
    "DPMultiheadAttention",
    "DPOptimizer",
    "ModuleValidator",
    "PrivacyEngine",
]

_MODULE = "the model isn't wrapped: use it as it is. PrivacyEngine.make_private returns it, and its state_dict has no '_module.'"
_PROCESSES = (
    "behind Opacus's names one process trains: leave the wrapper out, or use torch's DistributedDataParallel or fully_shard with "
    "gc.attach in a loop of your own"
)
_SCHEDULER = (
    "noise and threshold are those that the accounting was told, and don't move: leave it out, or let gc.Adaptive move the "
    "thresholds in a loop of your own (docs/accounting.md)"
)
_LOADER = "make_private draws the batches: pass torch's DataLoader(dataset, batch_size=B)"
#: What programs import for one of their options: they run where they don't use it.
_AT_USE = {
    "DPDDP": _PROCESSES,
    "DifferentiallyPrivateDistributedDataParallel": _PROCESSES,
    "FSDP2Wrapper": _PROCESSES,
    "DPDataLoader": _LOADER,
    "UniformWithReplacementSampler": _LOADER,
    "make_functional": (
        "per-sample gradients of every layer are computed here: leave grad_sample_mode='no_op' out, and what fills p.grad_sample"
    ),
}
_INSTEAD = {
    "GradSampleModule": _MODULE,
    "GradSampleHooks": _MODULE,
    "register_grad_sampler": "every layer of torch, and your own, is exact as it is: leave the registration out",
    "DPLightningDataModule": "the private batches of Lightning come from groupclip.integrations.lightning",
    "get_noise_multiplier": (
        "gc.Mechanism(dataset_size=n, expected_batch_size=B, steps=T).calibrate(epsilon=.., delta=..).noise_multiplier is that "
        "number"
    ),
    **{
        f"{kind}{what}": _SCHEDULER
        for kind in ("Exponential", "Lambda", "Step")
        for what in ("Noise", "GradClip")
    },
}


def __getattr__(name: str) -> Any:
    """Say what to write in the place of a name of Opacus that isn't here: at once, or where it is called.

    Raises:
        ImportError: a name that nothing stands for.
        AttributeError: no name of Opacus.
    """
    if name in _AT_USE:

        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise PrivacyViolation(f"{name} isn't in {__name__}: {_AT_USE[name]}")

        return refused
    if name in _INSTEAD:
        raise ImportError(f"{__name__} has no {name}: {_INSTEAD[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
