"""One column of a chunk: an Arrow array, where it stands, and how its texts are to be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr.spec.batch import I64, Bools

from .place import Place
from .texts import Texts, buffer_as, is_text


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one column for a run of rows.

    untyped: the values are bare text, as in a CSV, and become what the schema says (a Parquet string is a string).
    markers: texts that mean a missing value, beside the empty one; only where untyped.
    """

    array: Any
    place: Place
    untyped: bool = False
    markers: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.array)

    @property
    def type(self) -> Any:
        return self.array.type

    @property
    def is_text(self) -> bool:
        return is_text(self.array.type)

    def texts(self) -> tuple[Texts, Bools]:
        """The texts, and which of them are missing (those are empty)."""
        texts = Texts.of(self.array)
        nulls = texts.nulls(self.markers)
        return texts.without(nulls) if self.markers else texts, nulls

    def nulls(self) -> Bools | None:
        """Which values are null in the Arrow sense; None: not one is."""
        return nulls_of(self.array)

    def plain(self) -> npt.NDArray[Any]:
        """values_of the column's array, with 0 where null."""
        values, nulls = values_of(self.array), self.nulls()
        return values if nulls is None else np.where(nulls, values.dtype.type(0), values)

    def with_array(self, array: Any) -> Column:
        return replace(self, array=array)

    def take(self, rows: I64) -> Column:
        """The values of some rows, which keep their places."""
        return replace(self, array=self.array.take(pa.array(rows)), place=self.place.of_rows(rows))


# Arrays are read by their buffers: pyarrow's to_numpy, and its to_pandas_dtype too, import pandas for some types, half
# a second and 60 MB.

_DTYPES: dict[int, type] = {
    pa.int8().id: np.int8,
    pa.int16().id: np.int16,
    pa.int32().id: np.int32,
    pa.int64().id: np.int64,
    pa.uint8().id: np.uint8,
    pa.uint16().id: np.uint16,
    pa.uint32().id: np.uint32,
    pa.uint64().id: np.uint64,
    pa.float16().id: np.float16,
    pa.float32().id: np.float32,
    pa.float64().id: np.float64,
    pa.timestamp("ns").id: np.int64,
}


def nulls_of(array: Any) -> Bools | None:
    """Which values of an Arrow array are null; None: not one is."""
    if pa.types.is_null(array.type):
        return np.ones(len(array), np.bool_)
    return None if array.null_count == 0 else ~_bits(array.buffers()[0], array)


def values_of(array: Any) -> npt.NDArray[Any]:
    """Values of an integer, float, bool or timestamp array (as its count of ticks); anything where null."""
    if pa.types.is_boolean(array.type):
        return _bits(array.buffers()[1], array)
    return buffer_as(array.buffers()[1], _DTYPES[array.type.id])[array.offset : array.offset + len(array)]


def _bits(buffer: Any, array: Any) -> Bools:
    first = array.offset // 8
    size = array.offset % 8 + len(array)
    bits = np.unpackbits(buffer_as(buffer, np.uint8)[first : first + -(-size // 8)], count=size, bitorder="little")
    return bits[array.offset % 8 :].view(np.bool_)


def decoded(column: Column) -> Column:
    """The column with dictionary values in place of their codes, and run-end encoding expanded."""
    while pa.types.is_dictionary(column.type):
        column = column.with_array(column.array.dictionary_decode())
    if pa.types.is_run_end_encoded(column.type):
        column = decoded(column.with_array(pc.run_end_decode(column.array)))
    return column


def is_list(kind: Any) -> bool:
    """Whether an Arrow type holds lists, of any kind."""
    return bool(pa.types.is_nested(kind) and not pa.types.is_struct(kind) and not pa.types.is_map(kind))


def bounds_of(lengths: npt.NDArray[Any]) -> I64:
    """Bounds of runs that follow each other, given the length of each: run b is bounds[b]:bounds[b + 1]."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    text = str(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:60] + "..."
