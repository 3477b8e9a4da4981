#!/bin/sh
# What a machine with one GPU shows: environment, tests of what needs it, parity, and steps beside plain PyTorch and Opacus.
#     benchmarks/gpu.sh FOLDER
# Needs an environment with CUDA's torch and the extras of development. It is cut off after eight minutes, and writes each
# result as soon as it is there.
set -u
folder=${1:?give the folder for the results}
mkdir -p "$folder"
cd "$(dirname "$0")/.." || exit 1
nvidia-smi > "$folder/nvidia-smi.txt" 2>&1
python -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.__version__, torch.cuda.get_device_name())' \
    > "$folder/torch.txt" 2>&1 || { cat "$folder/torch.txt"; exit 1; }
timeout 150 python -m pytest -q -p no:cacheprovider -k "cuda or gpu" tests/noise tests/persample tests/memory tests/engine \
    > "$folder/tests.txt" 2>&1
tested=$?
PYTHONPATH=src timeout 330 python benchmarks/gpu.py "$folder" > "$folder/steps.txt" 2>&1
measured=$?
tail -n 3 "$folder/tests.txt" "$folder/steps.txt"
[ "$tested" -eq 0 ] && [ "$measured" -eq 0 ]
