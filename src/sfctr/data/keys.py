"""Columns as 64-bit keys. The rules are stated in docs/format/ids.md.

Integers and bools are their own 64 bits; texts are hashed. A key type once resolved is kept: a value that does not fit
it is refused, so that one id never has two keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sfctr import _native
from sfctr.spec.batch import KEEP_NULL, U8, U64, Bools
from sfctr.spec.errors import DataError, SchemaError
from sfctr.spec.schema import Bucket, KeyType

from .column import Column, decoded, is_list, shown, values_of
from .numeric import numbers
from .place import Place
from .texts import Texts, is_text

Remember = Callable[[U64, Texts], None]
"""Is told of every hashed text and its key, where keep_strings asks for the way back."""

_WHOLE_IDS = "write the ids as integers (pandas makes floats of integers with missing values; astype('Int64') does not)"
AS_STRINGS = 'declare dtype = "string" to hash the values as text'
_BOOLS = {b"true": 1, b"True": 1, b"TRUE": 1, b"1": 1, b"false": 0, b"False": 0, b"FALSE": 0, b"0": 0}


class OneKey(NamedTuple):
    """A key for each row, 0 where missing, and which are missing (None: none is)."""

    keys: U64
    nulls: U8 | None

    def normal(self) -> OneKey:
        return OneKey(self.keys, self.nulls if self.nulls is not None and self.nulls.any() else None)


def key_column(column: Column, dtype: KeyType, remember: Remember | None = None) -> OneKey:
    """Keys of a column under a resolved key type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        if is_text(kind.value_type) and dtype == "string":
            return _dictionary_keys(column, remember)
        return key_column(decoded(column), dtype, remember)
    if pa.types.is_run_end_encoded(kind):
        return key_column(decoded(column), dtype, remember)
    if pa.types.is_null(kind):
        return OneKey(np.zeros(len(column), np.uint64), np.ones(len(column), np.uint8))
    if column.is_text:
        if not column.untyped and dtype != "string":
            column.place.refuse(f"holds strings, and {dtype} keys were needed", remedy=f"convert the column to {dtype}")
        texts, nulls = column.texts()
        return OneKey(_zeroed(text_keys(texts, dtype, column.place, remember), nulls), nulls.view(np.uint8)).normal()
    if dtype == "string":
        refuse_as_key(kind, column.place)
        column.place.refuse(
            f"holds {kind} values, and strings were needed",
            remedy="the schema's keys are hashed texts: write the ids as strings",
        )
    return _typed_keys(column, dtype)


def text_keys(texts: Texts, dtype: KeyType, place: Place, remember: Remember | None = None) -> U64:
    """Keys of bare texts; those of empty ones mean nothing."""
    if dtype == "string":
        keys = texts.hashes(place)
        if remember is not None:
            remember(keys, texts)
        return keys
    if dtype == "bool":
        return _bool_texts(texts, place)
    parsed, bad = texts.uint64s() if dtype == "uint64" else texts.int64s()
    if bad >= 0 and texts.is_float(bad):
        refuse_float(texts, bad, place)
    if bad >= 0:
        place.refuse(f"{texts.shown(bad)} is no {dtype} id", bad, remedy=AS_STRINGS)
    return parsed.view(np.uint64)


def refuse_float(texts: Texts, index: int, place: Place) -> NoReturn:
    """Refuse text `index`, a float where an id was needed."""
    found = f"{texts.shown(index)} is a float, and floats are no ids"
    place.refuse(found, index, remedy=f"{_WHOLE_IDS}, or {AS_STRINGS}")


def refuse_as_key(kind: Any, place: Place) -> None:
    """Refuse Arrow types that can never be ids."""
    if pa.types.is_floating(kind):
        place.refuse(
            f"holds {kind} values, and floats are no ids",
            remedy=f"{_WHOLE_IDS}, or declare the column dense",
        )
    if pa.types.is_temporal(kind):
        place.refuse(f"holds {kind} values, and times are no ids", remedy="use a TimePart feature")
    if pa.types.is_decimal(kind) and kind.scale != 0:
        place.refuse(f"holds {kind} values, and numbers with decimals are no ids", remedy="declare the column dense")
    if is_list(kind):
        place.refuse(f"holds {kind} values, and one id a row was needed", remedy="use a Bag or a Sequence feature")
    if pa.types.is_nested(kind):
        place.refuse(f"holds {kind} values, which cannot be ids", remedy="give each of their fields a column")


def _typed_keys(column: Column, dtype: KeyType) -> OneKey:
    kind = column.type
    refuse_as_key(kind, column.place)
    nulls = column.nulls()
    if pa.types.is_decimal(kind):
        texts = Texts.of(pc.cast(column.array, pa.string()))
        keys = text_keys(texts, dtype, column.place)
    elif pa.types.is_boolean(kind):
        if dtype != "bool":
            column.place.refuse(f"holds bools, and {dtype} keys were needed", remedy=f"convert the column to {dtype}")
        keys = values_of(column.array).astype(np.uint64)
    elif pa.types.is_integer(kind):
        keys = _integer_keys(column, nulls, dtype)
    else:
        column.place.refuse(
            f"holds {kind} values, which cannot be ids", remedy="convert the column to integers or strings"
        )
    if nulls is None:
        return OneKey(keys, None)
    if not pa.types.is_integer(kind):
        keys = _zeroed(keys, nulls)
    return OneKey(keys, nulls.view(np.uint8))


def _integer_keys(column: Column, nulls: Bools | None, dtype: KeyType) -> U64:
    values = values_of(column.array)
    if nulls is not None:
        values = np.where(nulls, values.dtype.type(0), values)
    signed = values.dtype.kind == "i"
    if dtype == "bool":
        _refuse_where(
            (values != 0) & (values != 1), values, column.place, "is no bool", "declare the integer's own dtype"
        )
    elif dtype == "uint64" and signed:
        _refuse_where(
            values < 0, values, column.place, "is negative, and the ids are uint64", 'declare dtype = "int64"'
        )
    elif dtype == "int64" and not signed and values.dtype.itemsize == 8:
        above = values > np.uint64(2**63 - 1)
        _refuse_where(above, values, column.place, "does not fit int64", 'declare dtype = "uint64"')
    return values.astype(np.int64 if signed else np.uint64, copy=False).view(np.uint64)


def _refuse_where(bad: Bools, values: Any, place: Place, problem: str, remedy: str) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        place.refuse(f"id {shown(values[index])} {problem}", index, remedy=remedy)


def _dictionary_keys(column: Column, remember: Remember | None) -> OneKey:
    """Hashes each distinct text once."""
    codes, values = column.array.indices, column.array.dictionary
    texts = Texts.of(values)
    try:
        value_keys = text_keys(texts, "string", Place(""), remember)
    except DataError:  # a text that is not UTF-8: name the first row that uses it, if one does
        return key_column(decoded(column), "string", remember)
    missing = np.append(texts.nulls(column.markers), True)
    value_keys = np.append(np.where(missing[:-1], np.uint64(0), value_keys), np.uint64(0))
    places = Column(codes, column.place)
    index = places.plain().astype(np.int64)
    nulls = places.nulls()
    if nulls is not None:
        index[nulls] = len(value_keys) - 1
    return OneKey(value_keys[index], missing[index].view(np.uint8)).normal()


def _bool_texts(texts: Texts, place: Place) -> U64:
    ones = texts.nulls(tuple(word for word, value in _BOOLS.items() if value))
    known = texts.nulls(tuple(_BOOLS))
    if not known.all():
        bad = int(np.argmin(known))
        place.refuse(f"{texts.shown(bad)} is no bool", bad, remedy=f"write true or false, or {AS_STRINGS}")
    return ones.astype(np.uint64)


def _zeroed(keys: U64, nulls: Bools) -> U64:
    if not nulls.any():
        return keys
    return np.where(nulls, np.uint64(0), keys)


def bucket_column(column: Column, feature: Bucket) -> OneKey:
    """How many boundaries lie at or below each number."""
    values, _ = numbers(column)
    missing = np.isnan(values)
    keys = np.searchsorted(np.asarray(feature.boundaries, np.float64), values, side="right").astype(np.uint64)
    return OneKey(_zeroed(keys, missing), missing.view(np.uint8)).normal()


def bucket_numbers(keys: U64, buckets: int) -> U64:
    """The hashing trick: uint64 [n] numbers below `buckets`, as docs/format/ids.md says."""
    numbers = np.empty_like(keys)
    _native.bucket_keys(keys, buckets, numbers)
    return numbers


def cross_keys(parts: list[OneKey], rows: int) -> U64:
    """One key for each row's combination of keys, missing ones included."""
    out = np.empty(rows, np.uint64)
    _native.cross_keys([part.keys for part in parts], [part.nulls for part in parts], out)
    return out


def type_of_constant(value: object) -> KeyType:
    """The key type that a value fixed by serve_as suggests."""
    return "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "int64"


def constant_key(value: object, dtype: KeyType, name: str) -> np.uint64:
    """The key of a value fixed by serve_as."""
    fits: bool = {
        "bool": isinstance(value, bool),
        "string": isinstance(value, str) and value != "",
        "int64": isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63,
        "uint64": isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64,
    }[dtype]
    if not fits:
        raise SchemaError(f"feature '{name}': serve_as is {value!r}, and its keys are {dtype}")
    if isinstance(value, str):
        return np.uint64(_native.xxh3_64(value.encode()))
    assert isinstance(value, int)
    return np.uint64(value & (2**64 - 1))


def identity_keys(column: Column) -> U64:
    """Keys that say only which values are equal, for kept columns and splits: missing is KEEP_NULL.

    Integers, and texts that are canonical integers, are their 64 bits; any other text is hashed. So a CSV, its Parquet
    twin of integers and one of strings agree without a declared type.
    """
    column = decoded(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), KEEP_NULL)
    if column.is_text:
        texts, nulls = column.texts()
        keys = _identity_texts(texts, column.place)
    else:
        refuse_as_key(kind, column.place)
        dtype: KeyType = (
            "bool" if pa.types.is_boolean(kind) else "uint64" if pa.types.is_unsigned_integer(kind) else "int64"
        )
        one = _typed_keys(column, dtype)
        keys = one.keys
        nulls = np.zeros(len(keys), np.bool_) if one.nulls is None else one.nulls.view(np.bool_)
    return np.where(nulls, KEEP_NULL, keys)


def _identity_texts(texts: Texts, place: Place) -> U64:
    signed, bad = texts.int64s()
    if bad < 0:
        return signed.view(np.uint64)
    keys = texts.hashes(place)
    _native.overlay_integers(texts.data, texts.starts, texts.ends, keys)
    return keys
