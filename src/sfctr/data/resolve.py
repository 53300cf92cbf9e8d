"""A schema made whole for one input: every key type decided, every mean and deviation known.

Typed inputs (Parquet, frames) decide by the Arrow type. Bare text (a CSV, or text with a separator) decides by its
first rows: all canonical integers that fit int64, else uint64, else strings. Features of one table share a type, so
texts give way to what another feature of the table says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from ..spec.schema import Bag, Categorical, Cross, Feature, KeyType, Schema, key_type_of_table
from ..spec.schema import Sequence as SequenceFeature
from .chunk import Chunk
from .column import Column, decoded
from .keys import refuse_as_key, type_of_constant
from .texts import Texts, is_text

SAMPLE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Guess:
    """What a column's values say of its key type. sure: by their type, not by the look of some texts.

    dtype None: nothing (no value was seen). negative: an integer below 0 was seen.
    """

    dtype: KeyType | None
    sure: bool
    negative: bool = False


def is_resolved(schema: Schema) -> bool:
    """Whether no key type is left to be decided."""
    for feature in schema.keyed:
        if isinstance(feature, Categorical | Bag | SequenceFeature) and feature.dtype == "auto":
            return False
        if isinstance(feature, Cross) and (feature.dtypes is None or "auto" in feature.dtypes):
            return False
    return True


def resolve_keys(schema: Schema, sample: Sequence[Chunk]) -> Schema:
    """The schema with no key type "auto" left, given the input's first rows."""
    guesses: dict[str, list[Guess]] = {}
    for feature in schema.keyed:
        if isinstance(feature, Categorical | Bag | SequenceFeature):
            found = Guess(feature.dtype, True) if feature.dtype != "auto" else _guess_column(feature, sample)
            guesses.setdefault(feature.table_name, []).append(found)
    decided = {table: _agreed(found) for table, found in guesses.items()}
    features = tuple(_resolved(f, sample, decided) for f in schema.features)
    schema = msgspec.structs.replace(schema, features=features)
    key_type_of_table(schema)
    return schema


def _resolved(feature: Feature, sample: Sequence[Chunk], decided: dict[str, KeyType]) -> Feature:
    if isinstance(feature, Cross):
        declared = feature.dtypes or ("auto",) * len(feature.of)
        dtypes = tuple(
            _agreed([_guess_one(_columns(sample, c), None)]) if d == "auto" else d
            for c, d in zip(feature.of, declared, strict=True)
        )
        return msgspec.structs.replace(feature, dtypes=dtypes)
    if not isinstance(feature, Categorical | Bag | SequenceFeature) or feature.dtype != "auto":
        return feature
    sure = _guess_column(feature, sample)
    dtype = sure.dtype if sure.sure and sure.dtype is not None else decided[feature.table_name]
    return msgspec.structs.replace(feature, dtype=dtype)


def _agreed(guesses: list[Guess]) -> KeyType:
    """The type of a table's features together. Sure ones that differ are left to key_type_of_table to refuse."""
    seen = [g for g in guesses if g.dtype is not None]
    for guess in seen:
        if guess.sure and guess.dtype is not None:
            return guess.dtype
    dtypes = {g.dtype for g in seen}
    if not dtypes or "string" in dtypes:
        return "string"
    if "uint64" in dtypes:
        return "string" if any(g.negative for g in seen) else "uint64"
    return "int64"


def _columns(sample: Sequence[Chunk], name: str) -> list[Column]:
    return [decoded(chunk[name]) for chunk in sample if name in chunk]


def _guess_column(feature: Categorical | Bag | SequenceFeature, sample: Sequence[Chunk]) -> Guess:
    columns = _columns(sample, feature.columns[0])
    if isinstance(feature, Categorical):
        if not columns and feature.serve_as is not None:
            return Guess(type_of_constant(feature.serve_as), True)
        return _guess_one(columns, None)
    weight_separator = feature.weight_separator if isinstance(feature, Bag) else None
    return _guess_one(columns, feature.separator, weight_separator, lists=True)


def _guess_one(
    columns: list[Column], separator: str | None, weight_separator: str | None = None, *, lists: bool = False
) -> Guess:
    for column in columns:
        kind = column.type
        while lists and pa.types.is_nested(kind) and not pa.types.is_struct(kind):
            kind = kind.value_type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_null(kind):
            continue
        if not is_text(kind):
            return Guess(_typed(kind, column), True)
        if separator is None and not column.untyped:
            return Guess("string", True)
    return _guess_texts([c for c in columns if c.is_text], separator, weight_separator)


def _typed(kind: Any, column: Column) -> KeyType:
    refuse_as_key(kind, column.place)
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "uint64" if pa.types.is_unsigned_integer(kind) else "int64"
    if pa.types.is_decimal(kind):
        return "int64"
    raise column.place.error(
        f"holds {kind} values, which cannot be ids", remedy="convert the column to integers or strings"
    )


def _guess_texts(columns: list[Column], separator: str | None, weight_separator: str | None) -> Guess:
    signed = unsigned = True
    seen = negative = False
    for column in columns:
        texts = _ids(column, separator, weight_separator)
        seen = seen or bool((texts.starts < texts.ends).any())
        if signed:
            values, bad = texts.int64s()
            signed = bad < 0
            negative = negative or bool((values[: bad if bad >= 0 else None] < 0).any())
        if unsigned:
            unsigned = texts.uint64s()[1] < 0
    dtype: KeyType | None = None
    if seen:
        dtype = "int64" if signed else "uint64" if unsigned else "string"
    return Guess(dtype, False, negative)


def _ids(column: Column, separator: str | None, weight_separator: str | None) -> Texts:
    texts, _ = column.texts()
    if separator is None:
        return texts
    tokens, _ = texts.split(separator)
    tokens = tokens.without(tokens.nulls(column.markers))
    return tokens if weight_separator is None else tokens.before(weight_separator)
