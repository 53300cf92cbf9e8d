"""Pre-trained rows: a Parquet file of keys and vectors that a table begins from.

n rows of a block, D dim of the table
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sfctr.spec.batch import F32, U64
from sfctr.spec.errors import SchemaError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import KeyType
from sfctr.spec.tables import Table

from .column import Column
from .files import find_files
from .keys import Remember, key_column
from .parquet import ParquetReader
from .place import Place


def read_pretrained(table: Table, dtype: KeyType, remember: Remember | None = None) -> Iterator[tuple[U64, F32]]:
    """Blocks of keys uint64 [n] and vectors float32 [n, D] of the file `table.pretrained`.

    The file has a column `key`, read as the table's key type, and a list column `vector` of D finite numbers;
    `remember` is told of the texts of hashed keys. Raises DataError, naming row and column, for a missing key, a key
    that is there twice, or a vector of another length.
    """
    assert table.pretrained is not None
    file, *more = find_files([table.pretrained], Data(format="parquet"))
    if more:
        raise SchemaError(f"table '{table.name}': pretrained is {table.pretrained!r} and must name one Parquet file")
    reader = ParquetReader(file)
    for name in ("key", "vector"):
        if name not in reader.columns:
            raise SchemaError(
                f"{file.name}: pretrained rows of table '{table.name}' need the columns 'key' and 'vector', and"
                f" '{name}' is not among {', '.join(reader.columns)}"
            )
    place, first, seen = Place(file.name), 0, [np.empty(0, dtype=np.uint64)]
    for rows, arrays in reader.batches(("key", "vector"), 1):
        place = Place(file.name, first)
        seen.append(_keys(Column(arrays["key"], place.of_column("key")), dtype, remember))
        yield seen[-1], _vectors(arrays["vector"], place.of_column("vector"), table.dim)
        first += rows
    _refuse_repeated(np.concatenate(seen), Place(file.name, column="key"))


def _keys(column: Column, dtype: KeyType, remember: Remember | None) -> U64:
    found = key_column(column, dtype, remember)
    if found.nulls is not None and found.nulls.any():
        column.place.refuse("a pretrained row needs a key", int(np.argmax(found.nulls)), remedy="remove the row")
    return found.keys


def _refuse_repeated(keys: U64, place: Place) -> None:
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order[1:]] == keys[order[:-1]]]
    if again.size:
        place.refuse("this key has a pretrained row already", int(again.min()), remedy="keep one row for each key")


def _vectors(array: pa.Array, place: Place, dim: int) -> F32:
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        place.refuse(f"holds {kind} values, and lists of {dim} numbers are needed")
    lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    if (lengths != dim).any():
        index = int(np.argmax(lengths != dim))
        what = "is missing" if lengths[index] < 0 else f"has {lengths[index]} numbers"
        place.refuse(f"the vector {what}, and the table's dim is {dim}", index)
    values: F32 = array.flatten().cast(pa.float32()).to_numpy(zero_copy_only=False).reshape(-1, dim)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        place.refuse("the vector holds a number that is missing or not finite", int(np.argmin(finite)))
    return values
