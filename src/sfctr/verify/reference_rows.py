"""Where a key's row is and how it begins, for the reference: written from the papers and docs/format/rows.md, as
plainly as NumPy allows.

  n keys, D dim, C counters of a row
"""

from __future__ import annotations

import numpy as np
import torch

from sfctr.data.keys import constant_key
from sfctr.spec.batch import F32, U64, Bools
from sfctr.spec.tables import Normal, Table

_MASK32, _MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_BLOCK = 1 << 16


def mix(word: int) -> int:
    """splitmix64 (Steele, Lea and Flood, OOPSLA 2014): its increment, then its finaliser, modulo 2^64."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)


def table_keys(table: Table, keys: U64) -> U64:
    """The keys under which a table keeps the rows of `keys`: with buckets, the high 64 bits of mix(key) * buckets."""
    if table.buckets is None:
        return keys
    return np.array([(mix(int(key)) * table.buckets) >> 64 for key in keys], dtype=np.uint64)


def initial_rows(table: Table, seed: int, keys: U64, nulls: Bools) -> F32:
    """float32 [n, D]: what the rows of `keys` begin as in a run of this seed; a missing value's row has key 0."""
    of_keys = mix(int(constant_key(table.name, "string", table.name)) ^ mix(seed & _MASK64))
    rows = np.empty((keys.size, table.dim), dtype=np.float32)
    for begin in range(0, keys.size, _BLOCK):
        part = slice(begin, begin + _BLOCK)
        for chosen, own in ((~nulls[part], of_keys), (nulls[part], mix(of_keys))):
            rows[part][chosen] = _values(table, words(keys[part][chosen], own, table.dim))
    return rows


def words(keys: U64, seed: int, dim: int) -> U64:
    """One 32-bit word [n, D] for each element: Philox4x32-10 (Salmon et al., SC 2011).

    Its key is the seed's two halves, its counter the key's two halves and the number of the block of four elements.
    """
    blocks = np.arange(-(-dim // 4), dtype=np.uint64)[None, :]
    mask, half = np.uint64(_MASK32), np.uint64(32)
    c0, c1 = (keys & mask)[:, None] + 0 * blocks, (keys >> half)[:, None] + 0 * blocks
    c2, c3 = blocks + 0 * c0, np.zeros_like(c0)
    for number in range(10):
        k0 = np.uint64(((seed & _MASK32) + number * 0x9E3779B9) & _MASK32)
        k1 = np.uint64(((seed >> 32) + number * 0xBB67AE85) & _MASK32)
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> half) ^ c1 ^ k0, right & mask, (left >> half) ^ c3 ^ k1, left & mask
    drawn: U64 = np.stack([c0, c1, c2, c3], axis=2).reshape(keys.size, blocks.size * 4)
    return drawn[:, :dim]


def _values(table: Table, drawn: U64) -> F32:
    init = table.init
    if isinstance(init, Normal):
        share = torch.from_numpy((drawn.astype(np.float64) + 0.5) * 2.0**-32)
        normal = torch.special.ndtri(share).numpy()
        values: F32 = (init.mean + init.std * normal).astype(np.float32)
    else:
        unit = (drawn >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
        low, high = np.float32(init.low), np.float32(init.high)
        values = low + (high - low) * unit
    return values
