"""What one normal costs: nanoseconds per coordinate of adding noise to a float32 gradient, as JSON.

    python benchmarks/noise.py [--coordinates 5000000] [--rounds 15] [--threads 1 2]

All ways run in turn within each round, so that a disturbance of the machine meets all of them; the table
gives the median and the least over the rounds, and the ratio of medians to groupclip's own noise. Only
the first way is what groupclip does to float32; the second is what it does to float64, in one thread where
NumPy computes; the others are what it could have done.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import cryptography
import numpy as np
import torch

from groupclip.noise.boxmuller import InNumPy, InTorch, vectorised
from groupclip.noise.keystream import Keystream, new_key
from groupclip.noise.normals import CHUNK
from groupclip.noise.sources import SecureNoise

SIGNED_UNIT = 2.0**-63  # a signed 64-bit word to [-1, 1]


def torch_generator(dtype: torch.dtype) -> Callable[[torch.Tensor], None]:
    """torch's own normals (a 32-bit seed on the CPU, not secret), in chunks as groupclip draws them."""
    generator, block = torch.Generator().manual_seed(0), torch.empty(CHUNK, dtype=dtype)

    def add(gradient: torch.Tensor) -> None:
        for piece in gradient.split(CHUNK):
            piece.add_(block[: len(piece)].normal_(generator=generator))

    return add


def float64_arithmetic() -> Callable[[torch.Tensor], None]:
    """groupclip's own normals of float64, added to the float32 gradient."""
    stream, workspace = Keystream(new_key(), "benchmark"), (InNumPy if vectorised() else InTorch)(CHUNK)

    def add(gradient: torch.Tensor) -> None:
        for piece in gradient.split(CHUNK):
            stream.fill(workspace.needed(len(piece)))
            workspace.add(piece, 1.0)

    return add


def numpy_ziggurat() -> Callable[[torch.Tensor], None]:
    """NumPy's float64 Ziggurat over PCG64 (not cryptographic)."""
    generator, block = np.random.default_rng(0), np.empty(CHUNK)

    def add(gradient: torch.Tensor) -> None:
        for piece in gradient.split(CHUNK):
            part = block[: len(piece)]
            generator.standard_normal(out=part)
            piece.add_(torch.from_numpy(part))

    return add


def numpy_box_muller() -> Callable[[torch.Tensor], None]:
    """The same AES stream and method as groupclip's, by NumPy's sine and cosine, which are scalar code, and without buffers."""
    stream = Keystream(new_key(), "benchmark")

    def add(gradient: torch.Tensor) -> None:
        for piece in gradient.split(CHUNK):
            words = stream.words(len(piece) + len(piece) % 2).view(np.int64).reshape(2, -1)
            radius = np.sqrt(-2 * np.log(np.abs(words[0] | 1) * SIGNED_UNIT))
            angle = words[1] * (math.pi * SIGNED_UNIT)
            normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
            piece.add_(torch.from_numpy(normals[: len(piece)]))

    return add


def inverse_distribution() -> Callable[[torch.Tensor], None]:
    """The AES stream through the inverse of the normal distribution function: one word per normal."""
    stream = Keystream(new_key(), "benchmark")

    def add(gradient: torch.Tensor) -> None:
        for piece in gradient.split(CHUNK):
            words = torch.from_numpy(stream.words(len(piece)).view(np.int64))
            half = (words | 1).abs().double().mul_(SIGNED_UNIT / 2)  # the lower tail: full precision
            piece.add_(torch.special.ndtri(half).copysign(words))

    return add


def bytes_only() -> Callable[[torch.Tensor], None]:
    """The AES stream alone, 32 bits per coordinate: the floor of groupclip's own method."""
    stream, words = Keystream(new_key(), "benchmark"), np.empty(CHUNK, dtype=np.int32)

    def add(gradient: torch.Tensor) -> None:
        for piece in gradient.split(CHUNK):
            stream.fill(words[: len(piece)])

    return add


def secure_noise() -> Callable[[torch.Tensor], None]:
    source = SecureNoise()
    return lambda gradient: source.add_(gradient, 1.0)


def measure(coordinates: int, rounds: int) -> dict[str, dict[str, float]]:
    ways = {
        "groupclip": secure_noise(),
        "groupclip_float64_arithmetic": float64_arithmetic(),
        "torch_float64": torch_generator(torch.float64),
        "torch_float32": torch_generator(torch.float32),
        "numpy_ziggurat_float64": numpy_ziggurat(),
        "aes_numpy_box_muller": numpy_box_muller(),
        "aes_inverse_distribution": inverse_distribution(),
        "aes_bytes_only": bytes_only(),
    }
    gradient = torch.zeros(coordinates)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, add in ways.items():
            start = time.perf_counter()
            add(gradient)
            if turn:  # the first round warms up
                times[name].append((time.perf_counter() - start) / coordinates * 1e9)
    own = statistics.median(times["groupclip"])
    return {
        name: {
            "median_ns": round(statistics.median(values), 2),
            "least_ns": round(min(values), 2),
            "ratio_to_groupclip": round(statistics.median(values) / own, 2),
        }
        for name, values in times.items()
    }


def cpu_name() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description="Nanoseconds per coordinate of adding noise, as JSON.")
    parser.add_argument("--coordinates", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    load = os.getloadavg()[0] if sys.platform != "win32" else None
    tables = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        tables[f"threads={threads}"] = measure(arguments.coordinates, arguments.rounds)
    report = {
        "what": "ns per coordinate of adding N(0, 1) to a float32 tensor",
        "coordinates": arguments.coordinates,
        "rounds": arguments.rounds,
        "machine": {
            "cpu": cpu_name(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "load_before": load,  # processes waiting to run, mean of the last minute: timings want 0
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "cryptography": cryptography.__version__,
        },
        "results": tables,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
