"""What the rows of a run would cost on the wire, position by position, beside what they cost with virtual ids.

Peers count the bytes that are sent. This counts, of the same batches, the keys that other ranks own: once a batch, as
they travel, and as often as the rank's part has them, as they would travel without virtual ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfctr import _native

from .routes import Route
from .shapes import RowShape

KEY_BYTES = 8


@dataclass
class Traffic:
    """Since the exchange was made. Bytes that this rank receives as rows and sends as keys and gradients."""

    batches: int = 0
    unique: int = 0
    positions: int = 0
    bytes_unique: int = 0
    bytes_positions: int = 0

    def count(
        self,
        routes: Sequence[Route],
        working_sets: Sequence[_native.WorkingSet],
        shapes: Sequence[RowShape],
        rank: int,
    ) -> None:
        self.batches += 1
        for way, ws, shape in zip(routes, working_sets, shapes, strict=True):
            is_others = way.owner != rank
            unique = int(np.count_nonzero(is_others))
            positions = sum(_count(ws.virtual_ids(f), is_others) for f in range(len(ws.features)))
            row = KEY_BYTES + shape.weight_bytes(1) + shape.gradient_bytes(1)
            self.unique += unique
            self.positions += positions
            self.bytes_unique += unique * row
            self.bytes_positions += positions * row


def _count(ids: np.ndarray[tuple[int], np.dtype[np.int32]], chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    return int(np.count_nonzero(chosen[ids]))
