"""How a record keeps its vector, and the way from there to float32 and back.

  n rows, D dim

A record is float32 words. With dtype "fp32" its vector is D of them; with "bf16" it is D halves of (D + 1) // 2 words,
in order of address, and a zero half after an odd D. A bfloat16 is the upper half of a float32, so reading one is exact.
"""

from __future__ import annotations

import numpy as np

from sfctr.spec.batch import F32


def widen(words: F32, dim: int, dtype: str) -> F32:
    """float32 [n, D] of the vectors' words [n, W] in records; exact."""
    if dtype == "fp32":
        return words
    halves = np.ascontiguousarray(words).view(np.uint16)[:, :dim]
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(vectors: F32, dtype: str) -> F32:
    """The words [n, W] that float32 vectors [n, D] have in records.

    bf16 rounds to nearest, ties to even, as IEEE 754 does: what bf16 has stays as it is, NaN stays NaN, and a magnitude
    from 2^128 - 2^119 on becomes infinite.
    """
    if dtype == "fp32":
        return vectors
    count, dim = vectors.shape
    bits = np.ascontiguousarray(vectors, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    halves = np.zeros((count, dim + dim % 2), dtype=np.uint16)
    halves[:, :dim] = np.where(np.isnan(vectors), quiet, rounded)
    return halves.view(np.float32)
