"""Keys of exported rows: 64 bits again, and the order that rows have in a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sfctr.spec.batch import U64


def keys_of(rows: pa.Table) -> U64:
    """[n]: the key of each row, 0 where it is null."""
    column = rows["hash" if "hash" in rows.schema.names else "key"]
    values: Any = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy()
    keys: U64 = values.astype(np.int64).view(np.uint64) if values.dtype.kind in "ib" else values.astype(np.uint64)
    return keys


def hashes(keys: U64) -> U64:
    """By which rows are ordered: the finalizer of splitmix64, which native/include/sfctr/hash.h has as mix(). No two
    keys have the same."""
    hashed: U64 = keys ^ (keys >> np.uint64(30))
    hashed = hashed * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed ^= hashed >> np.uint64(31)
    return hashed
