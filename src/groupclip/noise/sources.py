"""Gaussian noise that nobody can foresee, added in place.

On the CPU each coordinate gets a normal made from an AES-256-CTR stream: of float32 arithmetic where it is added to float32
(:mod:`groupclip.noise.single`), of float64 elsewhere (:mod:`groupclip.noise.boxmuller`). Both have the tails of 63 bits.
``torch.randn`` is not used there: its CPU generator keeps 32 bits of the seed, and its float32 normals stop
at 5.77 standard deviations, so some outputs would be possible under one data set and impossible under its
neighbour.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from groupclip.noise.keystream import KEY_BYTES, Keystream, derive_key, new_key, refuse_copy
from groupclip.noise.normals import add_normals, pieces

_CUDA_CHUNK = 1 << 21  # coordinates drawn at a time there: 16 MiB
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

#: What statements call noise under a key of the user's: nobody knows who else has the key, or whether it was used before.
KEY_GIVEN = "groupclip under a key that was given"


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the sums that noise is added to, for parameters of type ``dtype``: float32 for half precision."""
    return torch.promote_types(dtype, torch.float32)


@runtime_checkable
class NoiseSource(Protocol):
    """Anything that adds Gaussian noise. ``secure`` says whether an epsilon may be claimed for it."""

    secure: bool

    def add_(self, tensor: Tensor, std: float) -> None:
        """Adds independent ``N(0, std^2)`` to every coordinate of ``tensor``, in place."""
        ...


class StreamNoise:
    """Gaussian noise from two keyed streams: one of normals (CPU), one of generator states (CUDA)."""

    def __init__(self, key: bytes) -> None:
        self._normals = Keystream(key, "groupclip/noise/normals")
        self._states = Keystream(key, "groupclip/noise/states")

    def add_(self, tensor: Tensor, std: float) -> None:
        """Adds independent ``N(0, std^2)`` to every coordinate of ``tensor``, in place.

        To more than 16,384 coordinates of float32 on the CPU, float32 normals are added, exact to 1e-6 of ``1 + |z|``.
        Otherwise noise is drawn in float64, and the sum is formed in float64 and cast once to the tensor's type, half precision
        included. Any shape and strides; at most 24 MiB of temporary memory. On the CPU in as many threads as torch
        has, four at most, which doesn't change what is drawn. ``std=0`` adds
        nothing and draws nothing.

        Args:
            tensor: dense; float64, float32, bfloat16 or float16.
            std: standard deviation, in the tensor's units.

        Raises:
            ValueError: ``std`` is negative or not finite, or coordinates of the tensor share memory.
            TypeError: the tensor is sparse or not of a real floating-point type.
        """
        self.add_to_each_([(tensor, std)])

    def add_to_each_(self, sums: Sequence[tuple[Tensor, float]]) -> None:
        """Adds noise to every tensor, of its own standard deviation: what :meth:`add_` does on one after another, and sooner."""
        for tensor, std in sums:
            check_target(tensor, std)
        filled = [(tensor, std) for tensor, std in sums if std != 0 and tensor.numel() != 0]
        with torch.no_grad():
            for on_cuda, alike in groupby(filled, lambda one: one[0].device.type == "cuda"):
                if on_cuda:
                    for tensor, std in alike:
                        self._add_on_cuda(tensor, std)
                else:
                    add_normals(list(alike), self._normals)

    def _add_on_cuda(self, tensor: Tensor, std: float) -> None:
        generator = torch.Generator(tensor.device)
        state = self._states.words(2)  # Philox: a 64-bit seed, and an offset that is a multiple of 4
        state[1] &= (1 << 62) - 4  # far from 2^63: no call can overflow it
        generator.set_state(torch.from_numpy(state.view("uint8")))
        for piece in pieces(tensor, _CUDA_CHUNK):
            noise = torch.empty(piece.shape, dtype=torch.float64, device=piece.device)
            piece.add_(noise.normal_(0.0, std, generator=generator))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)


class SecureNoise(StreamNoise):
    """Noise under a secret 256-bit key: the source of every private run.

    Guarantee: each call and each chunk uses stream positions that were never used before and never
    will be; no global generator is read or written; the key is in no attribute, repr, ``state_dict``
    or pickle (copies and pickles are refused); a forked child draws under a new key.

    On the CPU (and for devices other than CUDA, which get a copy) the noise is cryptographically
    strong. On CUDA each call gives a Philox generator of its own 124 fresh secret bits (seed and
    offset) and draws in float64: its start can't be searched for, but Philox is no cryptographic
    generator ("seed-secure, not a CSPRNG"). Floating-point addition is not hardened against attacks on
    the low bits of the sum (Mironov, CCS 2012). Not for two threads at once.

    Args:
        key: 32 secret bytes; by default from the operating system. Two sources with one key add the
            same noise, and the difference of two releases would be free of it: give a key only to let
            several processes add ONE noise to copies of one tensor.
    """

    secure: bool = True

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__(new_key() if key is None else key)
        self.key_was_given = key is not None

    def __repr__(self) -> str:
        return "SecureNoise()"


class InsecureNoise(StreamNoise):
    """The same noise under a key made from a number: for tests and debugging ONLY.

    Whoever guesses the seed subtracts the noise, so no epsilon may be claimed. The same seed and the
    same calls give the same noise on the same device type, up to rounding if the processors differ,
    unless the process was forked in between. On the CPU, a plain float32 tensor of more than 16,384 coordinates gets other noise
    than one of another type, or one whose memory NumPy can't reach (a subclass, inside a transform or a compiled function).

    Args:
        seed: any integer.
    """

    secure: bool = False

    def __init__(self, seed: int) -> None:
        self._seed = int(seed)
        super().__init__(derive_key(bytes(KEY_BYTES), f"groupclip/insecure/{self._seed}"))

    def of_rank(self, rank: int) -> "InsecureNoise":
        """Return the source of one of several processes: other noise than that of any other rank."""
        return InsecureNoise(int.from_bytes(derive_key(bytes(KEY_BYTES), f"groupclip/insecure/{self._seed}/rank {rank}"), "little"))

    def __repr__(self) -> str:
        return f"InsecureNoise(seed={self._seed}) (INSECURE: reproducible, so not private)"


def check_target(tensor: Tensor, std: float) -> None:
    """Check that independent noise can be added to every coordinate; ValueError or TypeError otherwise."""
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"std is {std}, but a standard deviation is finite and not negative.")
    if tensor.layout != torch.strided:
        raise TypeError(
            f"tensor is {tensor.layout}: noise must reach the coordinates that aren't stored too, or it "
            "would tell which ones the data touched. Use tensor.to_dense(), for an embedding sparse=False."
        )
    if tensor.dtype not in _DTYPES:
        known = ", ".join(map(str, _DTYPES))
        raise TypeError(f"tensor is {tensor.dtype}; Gaussian noise needs a real dtype, one of {known}: convert it.")
    if _overlaps(tensor):
        raise ValueError(
            f"tensor of shape {tuple(tensor.shape)} has strides {tensor.stride()}: coordinates share "
            "memory and would share their noise. Pass tensor.contiguous()."
        )


def _overlaps(tensor: Tensor) -> bool:
    """Return whether two coordinates may lie at one place: unless each dimension steps over all that the smaller ones reach."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += (size - 1) * stride
    return False
