"""Reading IDX files, the format that MNIST and its relatives come in, plain or gzipped.

Big-endian: two zero bytes, a type code (8 = unsigned byte), the number of dimensions, one 4-byte size each,
then the values. Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read one IDX file of unsigned bytes with the given number of dimensions.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not IDX, another type or number of dimensions, or a length that isn't the header's.
    """
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: the gzip data is damaged or cut off: {error}") from error
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise ValueError(f"{path} is no IDX file: it starts with {raw[:4].hex() or 'nothing'}, not with 0000")
    if raw[2] != UNSIGNED_BYTE:
        raise ValueError(f"{path} holds IDX type 0x{raw[2]:02x}; images and labels are unsigned bytes (0x08)")
    if raw[3] != dimensions:
        raise ValueError(f"{path} has {raw[3]} dimensions, not {dimensions}; are two files swapped?")
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise ValueError(f"{path} is cut off inside its header; fetch it again")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise ValueError(
            f"{path} announces {'x'.join(map(str, shape))} values but holds {len(raw) - start}; "
            "it is cut off or damaged, fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
