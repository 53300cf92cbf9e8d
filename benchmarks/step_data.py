"""What the contenders of bench_step.py are given: cases, ids, first rows, gradients. Needs numpy alone.

F features (a table each), B rows of a batch, D dim
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

F, B = 26, 8192
LR = 0.05
SKEW = 1.05
BLOCK = 65_521
"""Rows that differ; tables repeat them, each from another one on. Values change no time as long as none is denormal."""
STATE_FLOATS = {"sgd": (0, 0), "rowwise_adagrad": (0, 1), "adagrad": (1, 0), "adam": (2, 0)}
"""Optimizer state of a row: so many times its dim, and so many floats more."""
KEY_BYTES = 24
"""At most, of a key in our index."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """rule: of the optimizer. bag: ids of a feature in a row. rows: of all tables together, all of which exist."""

    rule: str
    dim: int
    bag: int
    rows: int

    @property
    def each(self) -> int:
        """Rows of a table."""
        return self.rows // F

    @property
    def num_batches(self) -> int:
        """That are trained in turn: many, so that their rows are not in the processor's cache when they come again."""
        return 32 if self.bag == 1 else 12

    def __str__(self) -> str:
        return f"dim {self.dim}, {'one-hot' if self.bag == 1 else f'{self.bag}-hot'}, {self.rows / 1e6:.3g} M rows"


def bytes_of_two(case: Case) -> int:
    """What the rows of ours and of a rival take together."""
    times, more = STATE_FLOATS[case.rule]
    return case.rows * (2 * 4 * (case.dim * (1 + times) + more) + KEY_BYTES)


def zipf_ids(random: np.random.Generator, n: int, num_ids: int, skew: float) -> np.ndarray:
    """int64 [n] from 0 to num_ids - 1, with frequencies ~ rank ** -skew; neighbours in rank lie far apart."""
    u = random.random(n)
    ranks = ((u * (num_ids ** (1 - skew) - 1) + 1) ** (1 / (1 - skew))).astype(np.int64) - 1
    return np.minimum(ranks, num_ids - 1) * 2_654_435_761 % num_ids


def ids(case: Case) -> list[list[np.ndarray]]:
    """Of each batch, of each feature: int64 [B * bag]."""
    random = np.random.default_rng(0)
    return [[zipf_ids(random, B * case.bag, case.each, SKEW) for _ in range(F)] for _ in range(case.num_batches)]


def offsets(case: Case, rows: int = B) -> np.ndarray:
    """int64 [rows + 1]: where bags begin."""
    return np.arange(0, rows * case.bag + 1, case.bag, dtype=np.int64)


@lru_cache(maxsize=1)
def _block(dim: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((BLOCK, dim), dtype=np.float32) * np.float32(0.01)


def first_rows(case: Case, feature: int) -> Iterator[tuple[int, np.ndarray]]:
    """All rows of a table in blocks: the number of the first, and float32 [n, D], N(0, 0.01)."""
    block = np.roll(_block(case.dim), -1009 * feature, axis=0)
    for begin in range(0, case.each, BLOCK):
        yield begin, block[: case.each - begin]


def gradients(case: Case) -> np.ndarray:
    """float32 [F, B, D] of the pooled vectors, the same at each step."""
    return np.random.default_rng(2).standard_normal((F, B, case.dim), dtype=np.float32) * np.float32(1e-3)
