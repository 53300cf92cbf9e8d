"""Columns as float64 numbers, and dense features made of them.

Every number is read as the double that its shortest decimal text names: a float32 0.1 in Parquet and the text "0.1" in
a CSV are one number. It is rounded once, to float32, after clip, transform and standardisation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr import _native
from sfctr.spec.batch import F32, I64, Bools
from sfctr.spec.schema import Dense

from .column import Column, bounds_of, decoded, is_list, shown, values_of
from .place import Place
from .texts import F64, Texts, buffer_as, is_text

_EXACT_DIGITS = 15  # a decimal of so many digits and its power of ten are exact doubles, so one division rounds right
_FLOAT_MAX = float(np.finfo(np.float32).max)
_CLIP = "give the feature a clip"


def numbers(column: Column) -> tuple[F64, Bools]:
    """Values as float64 and which are missing (null; those are NaN). Refuses types and texts that are no numbers."""
    values, missing = _numbers(column)
    values[missing] = np.nan
    return values, missing


def _numbers(column: Column) -> tuple[F64, Bools]:
    """As numbers, but a missing value may read as anything. Both arrays are the caller's own."""
    column = decoded(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column)), np.ones(len(column), np.bool_)
    if column.is_text:
        texts, missing = column.texts()
        return texts.doubles(column.place), missing
    nulls = column.nulls()
    missing = np.zeros(len(column), np.bool_) if nulls is None else nulls
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return _doubles(values_of(column.array)), missing
    if pa.types.is_decimal(kind):
        return _decimals(column), missing
    remedy = "use a TimePart feature" if pa.types.is_temporal(kind) else "declare another kind of feature for it"
    raise column.place.error(f"holds {kind} values, and a number was needed", remedy=remedy)


def _doubles(values: npt.NDArray[Any]) -> F64:
    if values.dtype != np.float32:
        return values.astype(np.float64)
    out = np.empty(len(values), np.float64)
    _native.widen_floats(np.ascontiguousarray(values), out)
    return out


def _decimals(column: Column) -> F64:
    """Decimals rounded correctly, as their texts would be. Values at nulls are arbitrary."""
    array, kind = column.array, column.type
    if kind.precision > _EXACT_DIGITS or not pa.types.is_decimal128(kind) or not 0 <= kind.scale <= 22:
        return Texts.of(pc.cast(array, pa.string())).doubles(column.place)
    low_words = buffer_as(array.buffers()[1], np.int64)[::2][array.offset : array.offset + len(array)]
    return np.asarray(low_words / np.float64(10.0**kind.scale))


def dense(column: Column, feature: Dense) -> F32:
    """float32 [B, width] of a dense feature."""
    if feature.size == 1 and not is_list(column.type):
        return finish_dense(*_numbers(column), column.place, feature)
    return _vectors(column, feature)


def dense_constant(value: float, rows: int, feature: Dense) -> F32:
    """A dense feature whose value is fixed, in each of `rows` rows."""
    values, known = np.full(feature.size, float(value)), np.zeros(feature.size, np.bool_)
    return np.repeat(finish_dense(values, known, Place("serve_as", column=feature.name), feature), rows, axis=0)


def finish_dense(values: F64, missing: Bools, place: Place, feature: Dense) -> F32:
    """float32 [B, width] of the numbers [B * size], which it changes; what they are where `missing` does not matter."""
    np.copyto(values, 0.0, where=missing)
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(values.sum()):  # cheaper than to ask each of them
            missing = missing | np.isnan(values)
            values[missing] = 0.0
        values = transformed(values, place, feature)
        if feature.mean is not None and feature.std is not None:
            values -= feature.mean
            values /= feature.std
        np.copyto(values, 0.0, where=missing)
        out = np.empty((len(values) // feature.size, feature.width), np.float32)
        out[:, : feature.size] = values.reshape(-1, feature.size)
        if not np.isfinite(out[:, : feature.size].sum()):
            _refuse_where(np.abs(values) > _FLOAT_MAX, values, place, feature, "does not fit a 32-bit float", _CLIP)
    if feature.indicator:
        out[:, feature.size] = missing if feature.size == 1 else missing.reshape(-1, feature.size).any(axis=1)
    return out


def transformed(values: F64, place: Place, feature: Dense) -> F64:
    """The numbers after clip and transform, changed in place. Refuses infinities, and negatives if asked to."""
    if not np.isfinite(values.sum()):
        _refuse_where(np.isinf(values), values, place, feature, "is not finite", "leave the value empty, or remove it")
    if feature.clip is not None:
        np.clip(values, *feature.clip, out=values)
    if feature.transform == "log1p":
        if feature.negatives == "refuse":
            _refuse_where(values < 0, values, place, feature, "is negative", 'negatives = "clip" counts it as 0')
        np.maximum(values, 0.0, out=values)
        np.log1p(values, out=values)
    return values


def _refuse_where(bad: Bools, values: F64, place: Place, feature: Dense, problem: str, remedy: str) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        place.refuse(f"{shown(values[index])} {problem}", index // feature.size, remedy=remedy)


def _vectors(column: Column, feature: Dense) -> F32:
    """Lists of `size` numbers, or texts of as many between blanks. A missing list is a row of missing numbers."""
    lengths, items = _items(column)
    wrong = np.flatnonzero((lengths != feature.size) & (lengths >= 0))
    if len(wrong):
        column.place.refuse(
            f"holds {lengths[wrong[0]]} numbers, and the feature's size is {feature.size}",
            int(wrong[0]),
            remedy=f"give every row {feature.size} numbers, or set size",
        )
    values, missing = np.zeros((len(column), feature.size)), np.ones((len(column), feature.size), np.bool_)
    values[lengths >= 0] = items.reshape(-1, feature.size)
    missing[lengths >= 0] = False
    return finish_dense(values.reshape(-1), missing.reshape(-1), column.place, feature)


def _items(column: Column) -> tuple[I64, F64]:
    """Length of each row's list (-1: missing), and the numbers of all lists in turn."""
    column = decoded(column)
    if is_text(column.type):
        texts, missing = column.texts()
        tokens, bounds = texts.split(" ")
        full = tokens.starts < tokens.ends
        bounds = bounds_of(full)[bounds]
        tokens = Texts(tokens.data, tokens.starts[full], tokens.ends[full])
        return np.where(missing, -1, np.diff(bounds)), tokens.doubles(column.place.of_items(bounds))
    if not is_list(column.type):
        column.place.refuse(f"holds {column.type} values, and lists of numbers were needed", remedy="set size = 1")
    lengths = values_of(pc.fill_null(pc.list_value_length(column.array), -1)).astype(np.int64)
    offsets = bounds_of(np.maximum(lengths, 0))
    child = column.with_array(column.array.flatten())
    values, _ = numbers(Column(child.array, column.place.of_items(offsets)))
    return lengths, values
