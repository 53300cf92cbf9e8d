"""Texts of a column as spans of one buffer: hashed, parsed or split natively, without a Python object for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr import _native
from sfctr.spec.batch import I64, U8, U64, Bools

from .place import Place

F64 = npt.NDArray[np.float64]
_SHOWN = 60  # characters of a value that a message shows
_FLOAT = re.compile(r"[ \t]*[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?[ \t]*", re.ASCII)

KNOWN_MARKERS = frozenset(
    ("NA", "N/A", "n/a", "NULL", "Null", "null", "None", "none", "nan", "NaN", "NAN", "\\N", "-", "?")
)
"""Texts that mean a missing value where they are all that keeps a column from being numbers."""

_TEXT_TYPES = frozenset(
    kind.id
    for kind in (
        *(pa.string(), pa.large_string(), pa.string_view()),
        *(pa.binary(), pa.large_binary(), pa.binary_view()),
    )
)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds texts (bytes count as texts: some writers mark no string as such)."""
    return kind.id in _TEXT_TYPES


@dataclass(frozen=True, slots=True)
class Texts:
    """Text i is data[starts[i]:ends[i]]; starts and ends are both int32 or both int64."""

    data: U8
    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]

    @staticmethod
    def of(array: Any) -> Texts:
        """The texts of an Arrow array; a null is an empty text."""
        if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
            array = pc.cast(array, pa.large_binary())
        if array.null_count:
            array = pc.fill_null(
                array, b"" if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) else ""
            )
        wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        _, bounds, data = array.buffers()
        offsets = buffer_as(bounds, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
        if len(offsets) == 0:  # an empty array may come without offsets
            offsets = np.zeros(1, np.int32)
        return Texts(buffer_as(data, np.uint8), offsets[:-1], offsets[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> str:
        return bytes(self.data[self.starts[index] : self.ends[index]]).decode("utf-8", "replace")

    def shown(self, index: int) -> str:
        """Text `index` as a message quotes it."""
        text = self[index]
        return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")

    def is_float(self, index: int) -> bool:
        """Whether text `index` is a number written with a point or an exponent: 101.0, 1e5."""
        return _FLOAT.fullmatch(self[index]) is not None

    def nulls(self, markers: tuple[bytes, ...]) -> Bools:
        """Which texts mean a missing value: the empty one, and the markers."""
        if not markers:
            return np.asarray(self.starts == self.ends)
        out = np.empty(len(self), np.uint8)
        _native.mark_null_spans(self.data, self.starts, self.ends, list(markers), out)
        return out.view(np.bool_)

    def without(self, nulls: Bools) -> Texts:
        """The same texts with those marked made empty."""
        return Texts(self.data, self.starts, np.where(nulls, self.starts, self.ends)) if nulls.any() else self

    def hashes(self, place: Place) -> U64:
        """XXH3-64 of every text. Refuses what is not UTF-8."""
        out = np.empty(len(self), np.uint64)
        bad = _native.hash_spans(self.data, self.starts, self.ends, out)
        if bad >= 0:
            place.refuse(
                f"{self.shown(bad)} is not valid UTF-8",
                bad,
                remedy="write the file in UTF-8 (iconv -t UTF-8 converts it)",
            )
        return out

    def int64s(self) -> tuple[I64, int]:
        """Canonical integers, 0 for empty texts; and the first text that is none (or does not fit), or -1."""
        out = np.empty(len(self), np.int64)
        return out, _native.parse_int64s(self.data, self.starts, self.ends, out)

    def uint64s(self) -> tuple[U64, int]:
        """As int64s, for unsigned integers."""
        out = np.empty(len(self), np.uint64)
        return out, _native.parse_uint64s(self.data, self.starts, self.ends, out)

    def numbers(self) -> tuple[F64, int]:
        """Decimal numbers, NaN for empty texts; and the first text that is none, or -1."""
        out = np.empty(len(self), np.float64)
        return out, _native.parse_doubles(self.data, self.starts, self.ends, out)

    def doubles(self, place: Place) -> F64:
        """As numbers, refusing what is none."""
        out, bad = self.numbers()
        if bad >= 0:
            place.refuse(
                f"{self.shown(bad)} is not a number",
                bad,
                remedy="write a number, leave the value empty, or name the text in data.null_values",
            )
        return out

    def split(self, separator: str) -> tuple[Texts, I64]:
        """The tokens of all texts, and the bounds of each text's tokens; an empty text has none."""
        mark = separator.encode()
        offsets = np.empty(len(self) + 1, np.int64)
        _native.count_tokens(self.data, self.starts, self.ends, mark, offsets)
        starts, ends = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
        _native.find_tokens(self.data, self.starts, self.ends, mark, starts, ends)
        return Texts(self.data, starts, ends), offsets

    def before(self, separator: str) -> Texts:
        """What stands before each text's last separator; the whole text where there is none."""
        at = np.empty(len(self), np.int64)
        _native.find_last(self.data, self.starts, self.ends, separator.encode(), at)
        return Texts(self.data, self.starts.astype(np.int64), np.where(at < 0, self.ends, at))

    def halves(self, separator: str) -> tuple[Texts, Texts, int]:
        """What stands before and after each text's last separator; and the first text without one, or -1."""
        at = np.empty(len(self), np.int64)
        _native.find_last(self.data, self.starts, self.ends, separator.encode(), at)
        without = np.flatnonzero(at < 0)
        if len(without):
            return self, self, int(without[0])
        starts, ends = self.starts.astype(np.int64), self.ends.astype(np.int64)
        return Texts(self.data, starts, at), Texts(self.data, at + len(separator.encode()), ends), -1


def buffer_as(buffer: Any, dtype: type) -> npt.NDArray[Any]:
    """An Arrow buffer as an array, without a copy; what is left over at its end is not in it."""
    size = np.dtype(dtype).itemsize
    if buffer is None or buffer.size < size:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, buffer.size // size)
