"""What the sampled values of one column are: their type, how many differ, how many are missing.

Text that says no type of its own (a CSV's) is read as whole numbers, numbers, true and false, or times where every
value allows it, as the reader will read it. Pure: a column in, facts out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr.spec.errors import DataError
from sfctr.spec.schema import KeyType

from .column import Column, decoded
from .numeric import numbers
from .texts import KNOWN_MARKERS, Texts
from .times import NO_TIME, times

Kind = Literal["empty", "integer", "number", "bool", "text", "time", "list", "vector", "other"]


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of a column that are there.

    name:    the column's.
    kind:    "list" for lists of ids, "vector" for lists of numbers, "other" for what no feature reads.
    found:   int64 or uint64 for "integer", float64 for "number", bool, int64 nanoseconds for "time" (NumPy); an Arrow
             array of strings for "text", of lists for "list" and "vector".
    sampled: rows looked at, missing ones included.
    keys:    how the values become keys, where they can.
    markers: texts that the column uses for a missing value.
    raw:     the column as it is.
    decimal: a "number" that the file holds as a decimal.
    """

    name: str
    kind: Kind
    found: Any
    sampled: int
    keys: KeyType = "auto"
    markers: tuple[str, ...] = ()
    raw: Column
    decimal: bool = False

    @property
    def count(self) -> int:
        return len(self.found)

    @property
    def missing(self) -> int:
        return self.sampled - self.count

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """How often each distinct value is there, by value for numbers."""
        if isinstance(self.found, np.ndarray):
            return np.unique(self.found, return_counts=True)[1].astype(np.int64)
        counted = pc.value_counts(self.found) if self.kind == "text" else None
        return np.zeros(0, np.int64) if counted is None else counted.field("counts").to_numpy()

    @property
    def distinct(self) -> int:
        return len(self.counts)

    def distinct_of(self, rows: int | None) -> int:
        """Estimate of the distinct values among `rows` rows (Charikar et al. 2000, the guaranteed-error estimator)."""
        seen_once = int(np.count_nonzero(self.counts == 1))
        growth = max(1.0, (rows or 100 * self.sampled) / max(self.sampled, 1)) ** 0.5
        return int(growth * seen_once) + self.distinct - seen_once


def facts_of(name: str, column: Column) -> Values:
    """The facts of a sampled column. Raises DataError where its text is not UTF-8."""
    column = decoded(column)
    kind = column.type
    if pa.types.is_null(kind) or column.array.null_count == len(column):
        return Values(name=name, kind="empty", found=[], sampled=len(column), raw=column)
    if column.is_text:
        return _text_values(name, column)
    made: dict[str, Any] = {"name": name, "sampled": len(column), "raw": column}
    there = column.array.drop_null()
    if pa.types.is_boolean(kind):
        return Values(kind="bool", found=there.to_numpy(zero_copy_only=False), keys="bool", **made)
    if pa.types.is_decimal(kind) and kind.scale == 0:
        signed, bad = Texts.of(pc.cast(there, pa.string())).int64s()
        if bad < 0:
            return _integers(signed, False, made)
    if pa.types.is_integer(kind):
        return _integers(there.to_numpy(zero_copy_only=False), pa.types.is_unsigned_integer(kind), made)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = numbers(column)[0]
        found = found[~np.isnan(found)]
        if not len(found):
            return Values(kind="empty", found=[], **made)
        return Values(kind="number", found=found, decimal=pa.types.is_decimal(kind), **made)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        ns = times(column, None)
        return Values(kind="time", found=ns[ns != NO_TIME], **made)
    return _list_values(there, made)


def _integers(found: Any, unsigned: bool, made: dict[str, Any]) -> Values:
    wide: npt.NDArray[Any] = found.astype(np.uint64 if unsigned else np.int64)
    return Values(kind="integer", found=wide, keys="uint64" if unsigned else "int64", **made)


def _list_values(there: Any, made: dict[str, Any]) -> Values:
    kind = there.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return Values(kind="other", found=there, **made)
    item = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
    if pa.types.is_floating(item) or pa.types.is_decimal(item):
        return Values(kind="vector", found=there, **made)
    if pa.types.is_string(item) or pa.types.is_large_string(item):
        return Values(kind="list", found=there, keys="string", **made)
    if pa.types.is_integer(item):
        return Values(
            kind="list", found=there, keys="uint64" if pa.types.is_unsigned_integer(item) else "int64", **made
        )
    return Values(kind="other", found=there, **made)


def _text_values(name: str, column: Column) -> Values:
    texts, missing = column.texts()
    texts.hashes(column.place)
    made: dict[str, Any] = {"name": name, "sampled": len(column), "raw": column}
    there = column.array.filter(pa.array(~missing))
    if len(there) == 0:
        return Values(kind="empty", found=[], **made)
    strings = pc.cast(pc.cast(there, pa.large_binary()), pa.large_string())
    typed = _typed_texts(column.with_array(strings), made) if column.untyped else None
    if typed is not None:
        return typed
    return Values(kind="text", found=strings, keys="string", **made)


def _typed_texts(column: Column, made: dict[str, Any]) -> Values | None:
    """Texts without a type of their own as what all of them can be, or None where they are texts."""
    rest, markers = _without_markers(column)
    marked = {**made, "markers": markers}
    whole = _whole_numbers(column, made)
    if whole is not None or pc.any(pc.match_substring_regex(column.array, r"^[-+]?0\d")).as_py():  # 00501 is a code
        return whole
    if markers and (whole := _whole_numbers(rest, marked)) is not None:
        return whole
    return _numbers(column, made) or (_numbers(rest, marked) if markers else None) or _bools_or_times(column, made)


def _without_markers(column: Column) -> tuple[Column, tuple[str, ...]]:
    """The texts that are none of the known markers of a missing value, and the markers in use; where those are the
    more, they are values."""
    known = pc.is_in(column.array, pa.array(sorted(KNOWN_MARKERS), column.array.type))
    used = column.array.filter(known).unique().to_pylist()
    rest = column.array.filter(pc.invert(known))
    return (column.with_array(rest), tuple(sorted(used))) if len(rest) * 2 >= len(column) else (column, ())


def _whole_numbers(column: Column, made: dict[str, Any]) -> Values | None:
    texts, _ = column.texts()
    for parse, unsigned in ((texts.int64s, False), (texts.uint64s, True)):
        whole, bad = parse()
        if bad < 0:
            return _integers(whole, unsigned, made)
    return None


def _numbers(column: Column, made: dict[str, Any]) -> Values | None:
    parsed, bad = column.texts()[0].numbers()
    return Values(kind="number", found=parsed[~np.isnan(parsed)], **made) if bad < 0 else None


def _bools_or_times(column: Column, made: dict[str, Any]) -> Values | None:
    distinct = column.array.unique()
    if len(distinct) <= 8 and {text.lower() for text in distinct.to_pylist()} <= {"true", "false"}:
        true = pc.equal(pc.utf8_lower(column.array), "true").to_numpy(False)
        return Values(kind="bool", found=true, keys="bool", **made)
    try:
        ns = times(column, None)
    except DataError:
        return None
    return Values(kind="time", found=ns, **made)
