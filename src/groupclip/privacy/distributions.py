"""Privacy loss distributions of steps, on a grid: of one step, of many, and of steps of several plans together.

A person with k samples: each of them enters a Poisson batch by itself, so the sum moves by up to J thresholds, where J is
binomial(k, q). The pair of a Gaussian and this mixture of Gaussians dominates (Choquette-Choo et al. 2023, corollary 4.7;
Ganesh 2024), whatever the directions of the k gradients.
"""

from collections.abc import Sequence
from functools import lru_cache

from groupclip.privacy.sampled_step import Step

# dp-accounting raises an integer to the power T when a distribution has at most 1,000 points: minutes at T =
# 1e8. Composing blocks of at most this many steps avoids it.
_BLOCK = 10_000
_FINE = 1e-10  # where a privacy loss is looked for, in thresholds


@lru_cache(maxsize=2)  # as one_step
def composed(step: Step, steps: int, grid: float):
    """Return the distribution of ``steps`` steps, or of up to 0.01 % more: blocks have equal length."""
    single = one_step(step, grid)
    blocks = -(-steps // _BLOCK)
    block = single.self_compose(-(-steps // blocks))
    return block if blocks == 1 else block.self_compose(blocks)


def epsilon_together(
    parts: Sequence[tuple[Step, int]], guarantees: Sequence[tuple[float, float]], delta: float, grid: float
) -> float:
    """Return epsilon at ``delta`` of all steps of ``parts`` (step, number) and of ``guarantees`` (epsilon, delta) together."""
    import numpy as np
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    losses = [composed(step, steps, grid) for step, steps in parts]
    losses += [
        pld.from_privacy_parameters(common.DifferentialPrivacyParameters(*given), value_discretization_interval=grid)
        for given in guarantees
    ]
    whole = losses[0]
    for loss in losses[1:]:
        whole = whole.compose(loss)
    with np.errstate(over="ignore"):
        return float(whole.get_epsilon_for_delta(delta))


@lru_cache(maxsize=3)  # up to 50 MB each
def one_step(step: Step, grid: float):
    """Return the distribution of one step, rounded up to a grid of the privacy loss."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as pld

    if step.is_mixture:
        return _mixture(step, grid)
    step = step.at_once
    relation = {
        "add-or-remove-one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        "replace-one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[step.adjacency]
    if step.sampling == "truncated-poisson":
        return pld.from_truncated_subsampled_gaussian_mechanism(
            step.dataset_size,
            step.rate,
            step.batch,
            step.sigma,
            value_discretization_interval=grid,
            neighboring_relation=relation,
        )
    return pld.from_gaussian_mechanism(
        step.sigma,
        value_discretization_interval=grid,
        sampling_prob=step.rate,
        neighboring_relation=relation,
    )


def _mixture(step: Step, grid: float):
    """Return what dp-accounting's from_mixture_gaussian_mechanism returns, ten times faster."""
    import numpy as np
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld import privacy_loss_mechanism as losses
    from scipy.stats import binom

    class Loss(losses.MixtureGaussianPrivacyLoss):
        # dp-accounting bisects for one privacy loss after the other, in Python, and to 1e-6
        def _inverse_privacy_losses_with_range(self, privacy_losses, bounds, precision=1e-6):
            low, high = (np.full(len(privacy_losses), float(bound)) for bound in bounds)
            constants, slopes = self._precompute_privacy_loss_constants, np.asarray(self.sensitivities) / self._variance
            sign = 1 if self.adjacency_type == losses.AdjacencyType.ADD else -1
            for _ in range(max(0, int(np.ceil(np.log2((bounds[1] - bounds[0]) / _FINE))))):
                middle = (low + high) / 2
                # the largest exponent is taken out: logaddexp.reduce is slow
                exponents = constants + sign * np.multiply.outer(middle, slopes)
                largest = exponents.max(axis=1)
                loss = -sign * (largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1)))
                above = loss > privacy_losses
                low, high = np.where(above, middle, low), np.where(above, high, middle)
            return high

    present = range(step.samples + 1)
    shares = [float(share) for share in binom.pmf(present, step.samples, step.rate)]

    def dots(kind: losses.AdjacencyType) -> pld_pmf.PLDPmf:
        loss = Loss(step.sigma, [float(j) for j in present], shares, adjacency_type=kind)
        bounds = loss.connect_dots_bounds()
        assert bounds.epsilon_lower is not None and bounds.epsilon_upper is not None  # its noise is continuous
        low, high = int(np.floor(bounds.epsilon_lower / grid)), int(np.ceil(bounds.epsilon_upper / grid))
        deltas = loss.get_delta_for_epsilon(np.arange(low, high + 1) * grid)  # pyright: ignore[reportArgumentType]
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)

    return pld.PrivacyLossDistribution(dots(losses.AdjacencyType.REMOVE), dots(losses.AdjacencyType.ADD))
