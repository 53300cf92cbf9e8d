"""Columns of lists as ragged keys: lists of ids, texts with a separator, and "id:weight" texts.

B rows, N items of all rows together
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr.spec.batch import F32, I64, U8, U64, Bools, Keys
from sfctr.spec.errors import SchemaError
from sfctr.spec.schema import Bag, KeyType, Schema
from sfctr.spec.schema import Sequence as SequenceFeature

from .column import Column, bounds_of, decoded, is_list, shown, values_of
from .keys import Remember, key_column, text_keys
from .numeric import numbers
from .place import Place
from .texts import F64, Texts


@dataclass(frozen=True, slots=True)
class Ragged:
    """Row b owns items offsets[b]:offsets[b + 1]. nulls marks missing items (None: none), which drop_nulls removes."""

    offsets: I64
    keys: U64
    nulls: U8 | None
    weights: F32 | None = None

    def drop_nulls(self, extra: Bools | None = None) -> Ragged:
        """Without the items that are missing here, or marked in `extra`."""
        dropped = np.zeros(len(self.keys), np.bool_) if self.nulls is None else self.nulls.view(np.bool_)
        if extra is not None:
            dropped = dropped | extra
        if not dropped.any():
            return replace(self, nulls=None)
        kept = ~dropped
        offsets = bounds_of(kept)[self.offsets]
        weights = None if self.weights is None else self.weights[kept]
        return Ragged(offsets, self.keys[kept], None, weights)

    def cut(self, max_length: int | None, *, latest: bool) -> Ragged:
        """At most max_length items of each row: its first, or its latest."""
        lengths = np.diff(self.offsets)
        if max_length is None or not len(lengths) or lengths.max() <= max_length:
            return self
        new_lengths = np.minimum(lengths, max_length)
        offsets = bounds_of(new_lengths)
        first = self.offsets[1:] - new_lengths if latest else self.offsets[:-1]
        items = np.repeat(first - offsets[:-1], new_lengths) + np.arange(offsets[-1])
        weights = None if self.weights is None else self.weights[items]
        return Ragged(offsets, self.keys[items], None, weights)

    def as_keys(self) -> Keys:
        return Keys(keys=self.keys, offsets=self.offsets, weights=self.weights)


def ragged_column(column: Column, separator: str | None, dtype: KeyType, remember: Remember | None) -> Ragged:
    """Ids of a column of lists, of texts split at `separator`, or of single ids; nulls inside lists are marked."""
    column = decoded(column)
    if pa.types.is_null(column.type):
        return _empty(len(column))
    if separator is not None:
        tokens, offsets = _tokens(column, separator)
        return _ragged_tokens(tokens, offsets, column, dtype, remember)
    items, offsets = _list_items(column)
    if items is None:
        one = key_column(column, dtype, remember)
        return Ragged(np.arange(len(column) + 1), one.keys, one.nulls).drop_nulls()
    keys, nulls = key_column(items, dtype, remember)
    return Ragged(offsets, keys, nulls)


def bag_column(columns: Mapping[str, Column], feature: Bag, dtype: KeyType, remember: Remember | None) -> Keys:
    """The keys, and weights if it has any, of a bag."""
    column = columns[feature.columns[0]]
    if feature.weight_separator is not None:
        ragged = _weighted_tokens(column, feature, dtype, remember)
    else:
        ragged = ragged_column(column, feature.separator, dtype, remember)
    if feature.weights is not None:
        weights = _weights(columns[feature.weights], feature, ragged, column)
        ragged = replace(ragged, weights=weights)
    ragged = ragged.drop_nulls().cut(feature.max_length, latest=False)
    return ragged.as_keys()


def sequence_groups(schema: Schema) -> list[list[SequenceFeature]]:
    """Sequences that share positions, each group led by the one the others are aligned with."""
    sequences = {f.name: f for f in schema.features if isinstance(f, SequenceFeature)}
    groups: dict[str, list[SequenceFeature]] = {}
    for feature in sequences.values():
        leader, seen = feature, {feature.name}
        while leader.aligned_with is not None:
            leader = sequences[leader.aligned_with]
            if leader.name in seen:
                raise SchemaError(f"feature '{feature.name}': aligned_with goes round in a circle")
            seen.add(leader.name)
        if leader.max_length != feature.max_length:
            raise SchemaError(
                f"feature '{feature.name}' has max_length {feature.max_length} and is aligned with '{leader.name}',"
                f" which has {leader.max_length}; give both the same"
            )
        members = groups.setdefault(leader.name, [])
        members.insert(0, feature) if feature is leader else members.append(feature)
    return list(groups.values())


def sequence_columns(
    columns: Mapping[str, Column],
    group: Sequence[SequenceFeature],
    dtypes: Mapping[str, KeyType],
    remember: Mapping[str, Remember],
) -> dict[str, Keys]:
    """The keys of sequences that share positions: a null in one drops the position in all."""
    raw = {
        f.name: ragged_column(columns[f.columns[0]], f.separator, dtypes[f.name], remember.get(f.name)) for f in group
    }
    leader = raw[group[0].name]
    dropped = np.zeros(len(leader.keys), np.bool_)
    for feature in group:
        _refuse_other_length(
            raw[feature.name].offsets, leader.offsets, columns[feature.columns[0]].place, group[0].name
        )
        nulls = raw[feature.name].nulls
        if nulls is not None:
            dropped |= nulls.view(np.bool_)
    return {f.name: raw[f.name].drop_nulls(dropped).cut(f.max_length, latest=True).as_keys() for f in group}


def _empty(rows: int) -> Ragged:
    return Ragged(np.zeros(rows + 1, np.int64), np.zeros(0, np.uint64), None)


def _list_items(column: Column) -> tuple[Column | None, I64]:
    """The items of a column of lists, with their bounds; None where it holds no lists."""
    if not is_list(column.type):
        return None, np.zeros(0, np.int64)
    # Not by a cast of list views to lists: pyarrow 26 computes wrong offsets for those that hold nulls.
    lengths = values_of(pc.fill_null(pc.list_value_length(column.array), 0))
    offsets = bounds_of(lengths)
    items = column.array.flatten()
    return Column(items, column.place.of_items(offsets)), offsets


def _tokens(column: Column, separator: str) -> tuple[Texts, I64]:
    if not column.is_text:
        column.place.refuse(
            f"holds {column.type} values, and texts with the separator {separator!r} were needed",
            remedy="leave out separator for a column of lists",
        )
    texts, _ = column.texts()
    return texts.split(separator)


def _ragged_tokens(tokens: Texts, offsets: I64, column: Column, dtype: KeyType, remember: Remember | None) -> Ragged:
    nulls = tokens.nulls(column.markers)
    keys = text_keys(tokens.without(nulls), dtype, column.place.of_items(offsets), remember)
    return Ragged(offsets, np.where(nulls, np.uint64(0), keys), nulls.view(np.uint8))


def _weighted_tokens(column: Column, feature: Bag, dtype: KeyType, remember: Remember | None) -> Ragged:
    assert feature.separator is not None and feature.weight_separator is not None
    column = decoded(column)
    if pa.types.is_null(column.type):
        return replace(_empty(len(column)), weights=np.zeros(0, np.float32))
    tokens, offsets = _tokens(column, feature.separator)
    # Dropping null tokens first lets every token that is left be held to have a weight.
    full = ~tokens.nulls(column.markers)
    offsets = bounds_of(full)[offsets]
    tokens = Texts(tokens.data, tokens.starts[full], tokens.ends[full])
    place = column.place.of_items(offsets)
    ids, weights, bad = tokens.halves(feature.weight_separator)
    if bad >= 0:
        mark = feature.weight_separator
        place.refuse(f"{tokens.shown(bad)} has no weight after {mark!r}", bad, remedy=f"write it as id{mark}weight")
    ragged = _ragged_tokens(ids, offsets, column, dtype, remember)
    return replace(ragged, weights=_checked_weights(weights.doubles(place), place, ragged))


def _weights(column: Column, feature: Bag, ragged: Ragged, ids: Column) -> F32:
    """Weights beside the ids of a column of their own."""
    values, offsets = _listed_weights(decoded(column), feature.separator)
    _refuse_other_length(offsets, ragged.offsets, column.place, ids.place.column or feature.name)
    return _checked_weights(values, column.place.of_items(offsets), ragged)


def _listed_weights(column: Column, separator: str | None) -> tuple[F64, I64]:
    """The weights of all rows, and the bounds of each row's."""
    if pa.types.is_null(column.type):
        return np.zeros(0), np.zeros(len(column) + 1, np.int64)
    items, offsets = _list_items(column)
    if items is not None:
        return numbers(items)[0], offsets
    if separator is not None and column.is_text:
        tokens, offsets = _tokens(column, separator)
        return tokens.without(tokens.nulls(column.markers)).doubles(column.place.of_items(offsets)), offsets
    values, missing = numbers(column)
    return values[~missing], bounds_of(~missing)


def _checked_weights(values: F64, place: Place, ragged: Ragged) -> F32:
    narrow: npt.NDArray[np.float32] = values.astype(np.float32)
    bad = ~np.isfinite(narrow)
    if ragged.nulls is not None:
        bad &= ragged.nulls == 0
    if bad.any():
        index = int(np.argmax(bad))
        found = "a weight is missing" if np.isnan(values[index]) else f"weight {shown(values[index])} is not finite"
        place.refuse(found, index, remedy="give every id a finite weight")
    return narrow


def _refuse_other_length(offsets: I64, wanted: I64, place: Place, other: str) -> None:
    lengths, needed = np.diff(offsets), np.diff(wanted)
    wrong = np.flatnonzero(lengths != needed)
    if len(wrong):
        at = int(wrong[0])
        place.refuse(
            f"has {lengths[at]} items and '{other}' has {needed[at]}",
            at,
            remedy="both lists of a row must be equally long",
        )
