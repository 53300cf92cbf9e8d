"""Data in memory as scans: Arrow tables, pandas and polars frames. A frame is read, never changed.

NaN in a pandas frame means missing, as pandas has it; in Arrow and polars it is a number that is none.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pyarrow as pa

from sfctr.spec.errors import DataError

from .chunk import CHUNK_ROWS, Chunk, Within, check_columns
from .column import shown
from .place import Place

_BIG_INTEGERS = (pa.uint64(), pa.list_(pa.uint64()))


class TableScan:
    """An Arrow table, or anything that can give some of its columns as one. See `Scan`."""

    edges: Sequence[int] = ()

    def __init__(self, name: str, columns: Sequence[str], num_rows: int) -> None:
        self.name = name
        self.columns: Sequence[str] = columns
        self.num_rows: int | None = num_rows

    def table(self, columns: Sequence[str]) -> Any:
        """An Arrow table of these columns."""
        raise NotImplementedError

    def check(self, columns: Sequence[str]) -> None:
        check_columns(columns, self.columns, self.name)

    def chunks(
        self, columns: Sequence[str], *, threads: int = 1, within: Within | None = None
    ) -> Generator[Chunk, None, None]:
        table = self.table(columns or self.columns[:1])
        position = 0
        if within is not None:
            position = max(0, within[0])
            table = table.slice(position, max(0, within[1] - position))
        for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
            if batch.num_rows:
                arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield Chunk(batch.num_rows, arrays, Place(self.name, position), position)
            position += batch.num_rows

    def close(self) -> None:
        pass


class ArrowScan(TableScan):
    def __init__(self, table: Any) -> None:
        super().__init__("Arrow table", tuple(table.column_names), table.num_rows)
        self._table = table

    def table(self, columns: Sequence[str]) -> Any:
        return self._table.select(list(columns))


class PolarsScan(TableScan):
    def __init__(self, frame: Any) -> None:
        super().__init__("polars DataFrame", tuple(frame.columns), frame.height)
        self._frame = frame

    def table(self, columns: Sequence[str]) -> Any:
        return self._frame.select(list(columns)).to_arrow()


class PandasScan(TableScan):
    """Columns are converted when first asked for, and kept."""

    def __init__(self, frame: Any) -> None:
        super().__init__("pandas DataFrame", tuple(str(c) for c in frame.columns), len(frame))
        self._frame = frame
        self._converted: dict[str, Any] = {}

    def table(self, columns: Sequence[str]) -> Any:
        for name in columns:
            if name not in self._converted:
                self._converted[name] = self._column(name)
        return pa.table({name: self._converted[name] for name in columns})

    def _column(self, name: str) -> Any:
        series = self._frame.iloc[:, self.columns.index(name)]
        if series.dtype == object:
            return array_of(series.tolist(), Place(self.name, column=name))
        try:
            return pa.Array.from_pandas(series)
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"the {series.dtype} values cannot be read: {reason}", file=self.name, column=name
            ) from None

    def close(self) -> None:
        self._converted.clear()


def array_of(values: list[Any], place: Place) -> Any:
    """Python values as one Arrow array; None, NaN and pandas' NA are null. Refuses values of types that do not mix."""
    array, why = _try_array(values)
    if array is not None:
        return array
    low, high = 1, len(values)  # the shortest run of first values that does not fit one type
    while low < high:
        middle = (low + high) // 2
        shorter, reason = _try_array(values[:middle])
        if shorter is None:
            high, why = middle, reason
        else:
            low = middle + 1
    value = values[low - 1]
    raise place.error(
        f"{shown(value)} ({type(value).__name__}) does not go with the values before it: {why}",
        low - 1,
        remedy="give the column values of one type",
    )


def _try_array(values: list[Any]) -> tuple[Any, str]:
    try:
        array = pa.array(values, from_pandas=True)
    except OverflowError:
        return _try_big_integers(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        return None, str(error).splitlines()[0]
    return (array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array), ""


def _try_big_integers(values: list[Any]) -> tuple[Any, str]:
    for kind in _BIG_INTEGERS:
        try:
            return pa.array(values, kind, from_pandas=True), ""
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
    return None, "integers fit neither int64 nor uint64"
