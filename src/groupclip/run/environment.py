"""What a run ran on: versions and hardware, without names of persons, hosts or folders."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

_PACKAGES = ("groupclip", "torch", "numpy", "dp-accounting", "cryptography", "safetensors")


def environment(device: torch.device) -> dict[str, str]:
    """Name -> version or description."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processor"] = _processor()
    found["threads"] = str(torch.get_num_threads())
    found["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return found


def _processor() -> str:
    cores = f"{os.cpu_count()} cores"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {cores}"
    return f"{platform.processor() or platform.machine()}, {cores}"
