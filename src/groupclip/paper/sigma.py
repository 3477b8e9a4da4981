"""How much noise each setting of the paper needs: sigma for every column of its settings table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..privacy.mechanism import Mechanism
from .catalogue import catalogue
from .cells import calibrated, plan
from .printed import printed_settings


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One plan of the paper, calibrated.

    mechanism: with the least sigma that any accountant proves enough. rdp_sigma: what the paper's accountant, RDP, asks for.
    """

    data: str
    epsilon: float
    delta: float
    epochs: int
    mechanism: Mechanism
    rdp_sigma: float


def budgets() -> Iterator[Budget]:
    """Yield every (data set, epsilon, epochs) that a table or figure asks for, in the order of the settings table."""
    wanted = {(name, epsilon, s.epochs) for name, s in printed_settings().data.items() for epsilon in s.epsilons}
    for table in catalogue().values():
        cells = [cell for row in table.rows for cell in row.cells()]
        wanted |= {(c.data, float(c.epsilon), c.epochs) for c in cells if c.epsilon is not None}
    names = list(printed_settings().data)
    for data, epsilon, epochs in sorted(wanted, key=lambda w: (names.index(w[0]), w[2], w[1])):
        yield budget(data, epsilon, epochs)


@cache
def budget(data: str, epsilon: float, epochs: int) -> Budget:
    """Describe one of them."""
    settings = plan(data, epsilon, epochs)
    bare = settings.plan(printed_settings().of(data).records)
    by_rdp = bare.calibrate(epsilon=epsilon, delta=settings.delta, accountant="RDP").noise_multiplier
    assert by_rdp is not None
    return Budget(
        data=data, epsilon=epsilon, delta=settings.delta, epochs=epochs, mechanism=calibrated(data, epsilon, epochs),
        rdp_sigma=by_rdp,
    )  # fmt: skip
