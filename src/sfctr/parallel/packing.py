"""Arrays in messages: put behind one another, taken out again in that order; and vectors in bfloat16 on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sfctr.spec.batch import F32
from sfctr.spec.peers import Bytes

Array = npt.NDArray[Any]


def packed(arrays: Sequence[Array]) -> Bytes:
    """All their bytes."""
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint8), *parts])


class Reader:
    """Takes arrays out of a message, in the order in which they were put there."""

    def __init__(self, message: Bytes) -> None:
        self._message, self._at = message, 0

    def take(self, dtype: npt.DTypeLike, *shape: int) -> Array:
        """The next array; a view, perhaps not aligned."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        part = self._message[self._at : self._at + size]
        self._at += size
        return part.view(dtype).reshape(shape)

    def rest(self) -> Bytes:
        return self._message[self._at :]


def to_bf16(vectors: F32) -> npt.NDArray[np.uint16]:
    """Rounded to nearest even, as their bits; shaped as given."""
    halves = torch.from_numpy(np.ascontiguousarray(vectors)).to(torch.bfloat16)
    bits: npt.NDArray[np.uint16] = halves.view(torch.int16).numpy().view(np.uint16)
    return bits


def from_bf16(bits: npt.NDArray[np.uint16]) -> F32:
    wide: F32 = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide
