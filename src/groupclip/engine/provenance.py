"""Where the noise of a run came from, as its statement tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..noise.grid import HardenedNoise
from ..noise.sources import KEY_GIVEN, InsecureNoise, NoiseSource, SecureNoise

REPRODUCIBLE = (
    "the noise of this run comes from a seed and can be subtracted again, so no epsilon can be claimed; attach without noise= for "
    "secure noise (mechanism.epsilon(delta=..) gives the figure of the plan)"
)


@dataclass(frozen=True)
class Provenance:
    """The noise of all steps of a run, those before a resume included.

    Attributes:
        secure: no seed reproduces it.
        hardened: it is on a grid.
        foreign: the source that groupclip can't answer for; empty if the noise is its own.
    """

    secure: bool
    hardened: bool
    foreign: str

    @classmethod
    def of(cls, noise: NoiseSource, *, hardened: bool) -> Provenance:
        """Tell of noise that an engine adds itself."""
        return cls(noise.secure, hardened, vouched_for(noise))

    def after(self, saved: Mapping[str, Any]) -> Provenance:
        """Tell of this noise and of that of saved steps before it: whatever was wrong with one of them stays."""
        return Provenance(
            secure=self.secure and saved["secure"] is True,
            hardened=self.hardened and saved["hardened"] is True,
            foreign=self.foreign or str(saved["foreign"]),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def vouched_for(noise: NoiseSource) -> str:
    """Name noise that groupclip can't answer for; return nothing for its own."""
    if type(noise) not in (SecureNoise, InsecureNoise, HardenedNoise):  # a subclass may add another noise, or none
        return type(noise).__name__
    given = isinstance(noise, (SecureNoise, HardenedNoise)) and noise.key_was_given
    return KEY_GIVEN if given else ""
