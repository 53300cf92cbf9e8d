"""Look-ups in dense tables: plain torch over ordinary parameters, with the meaning of stored tables.

B rows, N keys, L max_length, D dim, R rows of the table; row R stands for a missing value
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sfctr.data.keys import bucket_numbers
from sfctr.spec.batch import I64, Bools, Keys
from sfctr.spec.errors import DataError
from sfctr.store.dense import DenseTable

from .layout import Lookup


def row_numbers(keys: Keys, lookup: Lookup, num_rows: int) -> tuple[I64, Bools]:
    """Row of every key, int64 [N], and where the key is outside the table, bool [N] (its row is then 0)."""
    numbers = keys.keys
    if lookup.buckets:
        numbers = bucket_numbers(keys.keys, lookup.buckets)
    outside = numbers >= np.uint64(num_rows)
    rows = np.where(outside, 0, numbers).astype(np.int64)
    if keys.nulls is not None:
        is_null = keys.nulls.astype(np.bool_)
        rows[is_null] = num_rows
        outside &= ~is_null
    return rows, outside


def refuse_outside(keys: Keys, outside: Bools, lookup: Lookup, num_rows: int, positions: I64) -> None:
    """Raise DataError where training looks up a key that a dense table does not have; positions [B], of the rows."""
    if outside.any():
        place = int(np.argmax(outside))
        key = int(keys.keys[place : place + 1].view(np.int64)[0])
        row = place if keys.offsets is None else int(np.searchsorted(keys.offsets, place, side="right")) - 1
        raise DataError(
            f"key {key} is outside the dense table '{lookup.table}' of {num_rows} rows",
            file="the input, all files together",
            row=int(positions[row]) + 1,
            column=lookup.name,
            remedy="raise num_rows, or give the table buckets",
        )


def pooled(weight: Tensor, keys: Keys, rows: I64, outside: Bools, lookup: Lookup) -> Tensor:
    """[B, D] (sequences [B, L, D]) of `weight` [R + 1, D]; keys outside the table read as zero."""
    device = weight.device
    index = torch.from_numpy(rows).to(device)
    if keys.offsets is None:
        found = F.embedding(index, weight)
        return found if not outside.any() else found * torch.from_numpy(~outside).to(device)[:, None]
    if lookup.is_sequence:
        padded, mask = pad(keys.offsets, rows, lookup.max_length, outside)
        found = F.embedding(torch.from_numpy(padded).to(device), weight)
        return found * torch.from_numpy(mask).to(device)[:, :, None]
    return _bag(weight, keys, index, outside, lookup)


def _bag(weight: Tensor, keys: Keys, index: Tensor, outside: Bools, lookup: Lookup) -> Tensor:
    assert keys.offsets is not None
    device = weight.device
    ones = np.ones(keys.keys.size, dtype=np.float32) if keys.weights is None else keys.weights
    counted = ones if not outside.any() else np.where(outside, np.float32(0), ones)
    summed = F.embedding_bag(
        index,
        weight,
        torch.from_numpy(keys.offsets).to(device),
        mode="sum",
        per_sample_weights=torch.from_numpy(counted).to(device),
        include_last_offset=True,
    )
    if lookup.pooling == "sum":
        return summed
    lengths = np.diff(keys.offsets)
    total = lengths.astype(np.float64)
    if keys.weights is not None:
        owners = np.repeat(np.arange(lengths.size), lengths)
        total = np.bincount(owners, ones, minlength=lengths.size).astype(np.float64)
    inverse = np.divide(1.0, total, out=np.zeros(lengths.size), where=total != 0).astype(np.float32)
    return summed * torch.from_numpy(inverse).to(device)[:, None]


def pad(offsets: I64, rows: I64, max_length: int, outside: Bools) -> tuple[I64, Bools]:
    """Left-aligned row numbers [B, L] and the positions that hold a key of the table, bool [B, L]."""
    there = sequence_mask(offsets, max_length)
    padded = np.zeros(there.shape, dtype=np.int64)
    padded[there] = rows
    mask = there.copy()
    mask[there] = ~outside
    return padded, mask


def sequence_mask(offsets: I64, max_length: int) -> Bools:
    """bool [B, L]: the positions that a sequence fills."""
    mask: Bools = np.arange(max_length)[None, :] < np.diff(offsets)[:, None]
    return mask


def dense_features(
    table: DenseTable, keys: Keys, lookup: Lookup, positions: I64, *, training: bool
) -> tuple[dict[str, Tensor], int]:
    """The feature's entries of features(), and how many of its look-ups found no row.

    positions: of the B rows in their source, for errors.
    """
    num_rows = table.table.rows_of_dense
    rows, outside = row_numbers(keys, lookup, num_rows)
    if training:
        refuse_outside(keys, outside, lookup, num_rows, positions)
    entries: dict[str, Tensor] = {}
    if table.weight is not None:
        entries[lookup.name] = pooled(table.weight, keys, rows, outside, lookup)
    if table.linear is not None:
        found = pooled(table.linear, keys, rows, outside, lookup)
        entries[f"{lookup.name}.linear"] = found.sum(dim=1) if lookup.is_sequence else found
    return entries, int(outside.sum())
