"""One batch as data sees it: numbers, labels and ragged keys, in NumPy arrays that nobody changes afterwards.

B rows, K labels, N keys of a feature (B for one-key features)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """The keys of one feature for all rows of a batch.

    keys:    uint64 [N], all 64 bits of the key; signed keys by their two's complement.
    offsets: int64 [B + 1], row b owns keys[offsets[b]:offsets[b + 1]]; None for one-key features (N = B).
    nulls:   uint8 [N], 1 where a one-key feature's value is missing (its key is then 0 and means nothing); None: no
             value is missing. Always None where offsets are given.
    weights: float32 [N] of a weighted bag, else None.
    """

    keys: U64
    offsets: I64 | None = None
    nulls: U8 | None = None
    weights: F32 | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`size` rows. Everything a step needs, and nothing of a model, a table's contents or a device.

    dense:  feature name -> float32 [B, width]
    keys:   feature name -> Keys
    labels: float32 [B, K], 0 where masked; NaN never.
    label_mask: bool [B, K], True where the label is known. A source opened without labels has K = 0.
    weight: float32 [B] of row weights, or None for all ones.
    rows:   int64 [B], position of each row in the source, counted from 0 over its files in order, before any filter.
    time:   int64 [B] nanoseconds since 1970 of the schema's time column, or None.
    keep:   column name -> uint64 [B] keys of columns carried for metrics, missing as the hash of no value (KEEP_NULL).
    whole:  rows of the batch of all processes that these rows are a part of (perhaps none of it); None: size.
    places: int64 [B], rising: where each row stands in that batch; None: 0 to size - 1.
    """

    size: int
    dense: Mapping[str, F32] = field(default_factory=dict)
    keys: Mapping[str, Keys] = field(default_factory=dict)
    labels: F32
    label_mask: Bools
    weight: F32 | None = None
    rows: I64
    time: I64 | None = None
    keep: Mapping[str, U64] = field(default_factory=dict)
    whole: int | None = None
    places: I64 | None = None

    @property
    def whole_size(self) -> int:
        return self.size if self.whole is None else self.whole


KEEP_NULL = np.uint64(0x9E3779B97F4A7C15)
"""What a missing value of a kept column reads as; a real key may collide with it only by chance."""
