"""The parts of records in the cache: gathered into contiguous tensors, and written back.

C lines, R floats of a record, K lines wanted, D dim
"""

from __future__ import annotations

from torch import Tensor


def load_vectors(cache: Tensor, lines: Tensor, dim: int) -> Tensor:
    """float32 [K, D]: the vectors of the given lines, int64 [K], of cache [C, R]."""
    return load_floats(cache, lines, 0, dim)


def store_vectors(cache: Tensor, lines: Tensor, vectors: Tensor) -> None:
    """Write vectors [K, D] back. REQUIRES: no line is there twice."""
    store_floats(cache, lines, 0, vectors)


def load_floats(cache: Tensor, lines: Tensor, first: int, length: int) -> Tensor:
    """float32 [K, length]: floats [first, first + length) of the given lines."""
    return cache.narrow(1, first, length).index_select(0, lines)


def store_floats(cache: Tensor, lines: Tensor, first: int, values: Tensor) -> None:
    """Write values [K, length] to floats [first, first + length). REQUIRES: no line is there twice."""
    cache.narrow(1, first, values.shape[1]).index_copy_(0, lines, values)
