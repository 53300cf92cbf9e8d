"""A schema made whole for one input: every key type decided, every mean and deviation known.

Typed inputs (Parquet, frames) decide by the Arrow type. Bare text (a CSV, or text with a separator) decides by its
first rows: all canonical integers that fit int64, else uint64, else strings; but where all are numbers and some of them
floats, they are ids that something turned into floats, and are refused as a column of floats is. Features of one table
share a type, so texts give way to what another feature of the table says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from sfctr.spec.schema import Bag, Categorical, Cross, Feature, KeyType, Schema, key_type_of_table
from sfctr.spec.schema import Sequence as SequenceFeature

from .chunk import Chunk
from .column import Column, decoded, is_list
from .keys import refuse_as_key, refuse_float, type_of_constant
from .place import Place
from .texts import KNOWN_MARKERS, Texts, is_text

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
        while lists and is_list(kind):
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
    found = [_ids(column, separator, weight_separator) for column in columns]
    if not any((texts.starts < texts.ends).any() for texts, _ in found):
        return Guess(None, False)
    signed = [texts.int64s() for texts, _ in found]
    if all(bad < 0 for _, bad in signed):
        return Guess("int64", False, negative=any(bool((values < 0).any()) for values, _ in signed))
    if all(texts.uint64s()[1] < 0 for texts, _ in found):
        return Guess("uint64", False)
    _refuse_floats(found)
    return Guess("string", False)


def _refuse_floats(found: list[tuple[Texts, Place]]) -> None:
    """Refuse the first float where nothing but numbers, and words for a missing one, was found."""
    markers = tuple(word.encode() for word in KNOWN_MARKERS)
    if any(texts.without(texts.nulls(markers)).numbers()[1] >= 0 for texts, _ in found):
        return
    for texts, place in found:
        for index in range(len(texts)):
            if texts.is_float(index):
                refuse_float(texts, index, place)


def _ids(column: Column, separator: str | None, weight_separator: str | None) -> tuple[Texts, Place]:
    """The texts that are to be keys, and where they stand."""
    texts, _ = column.texts()
    if separator is None:
        return texts, column.place
    tokens, bounds = texts.split(separator)
    tokens = tokens.without(tokens.nulls(column.markers))
    ids = tokens if weight_separator is None else tokens.before(weight_separator)
    return ids, column.place.of_items(bounds)
