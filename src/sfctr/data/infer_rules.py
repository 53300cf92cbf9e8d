"""What becomes of a column, decided from its sampled values and its name, and said with the evidence.

Pure: facts in, a `Finding` out. A finding that leaves a column out still holds the features it would have been.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr.spec.batch import I64
from sfctr.spec.schema import RESERVED_SUFFIXES, Bag, Categorical, Dense, Feature, KeyType, TimePart, TimePartName

from .infer_names import names_id, names_number, names_time
from .infer_times import FORMATS, has_hours, number_time_format
from .infer_values import Values
from .times import NO_TIME, times

KEEP_STRINGS_UP_TO = 100_000
"""Texts of columns with at most so many distinct values (an estimate for all rows) are kept for exports."""

_FEW = 64
"""Whole numbers with at most so many distinct values are ids whatever they count."""
_MANY_ROWS = 100
"""Sampled rows from which it says something that no value is there twice."""
_LARGE_ID = 2**31
_FAR_APART = 1_000
"""Counts leave smaller gaps than this between their values, on average."""
_SEPARATORS = ("|", ";", ",", " ")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a column becomes and why.

    features: one, or several for a time; why: the reason with the evidence; left_out: the features are only proposed.
    ns:       int64 nanoseconds [rows sampled] of a column of times, else None; format: how it is written.
    markers:  texts that must be declared as missing values for this.
    """

    column: str
    features: tuple[Feature, ...] = ()
    why: str
    left_out: bool = False
    ns: I64 | None = None
    format: str | None = None
    markers: tuple[str, ...] = ()


def find(values: Values, *, rows: int | None) -> Finding:
    """What becomes of a column of a source of `rows` rows (None: unknown)."""
    finding = _by_kind(values, rows)
    if finding.left_out or finding.ns is not None:
        return finding
    if values.distinct == 1 and not values.missing:
        return replace(finding, why=f"the same value on each of {values.count:,} sampled rows", left_out=True)
    if _is_row_number(values, finding.features[0]):
        return replace(finding, why=f"another value on each of {values.count:,} sampled rows", left_out=True)
    return finding


def find_time(values: Values, format: str | None) -> Finding:
    """The column as times, because it was named as one. Raises DataError where it holds none."""
    if values.kind in ("integer", "empty") and format is None:
        format = number_time_format(values.found)
        if format is None:
            values.raw.place.refuse("holds no times of a known format", remedy=f"name its format; {FORMATS}")
    return _time(values, format, times(values.raw, format))


# ---- by kind ------------------------------------------------------------------------------------------------------


def _by_kind(values: Values, rows: int | None) -> Finding:
    if values.kind == "empty":
        return _left_out(values, (_categorical(values, rows),), f"no value on any of {values.sampled:,} sampled rows")
    if values.kind == "other":
        return _left_out(values, (), f"it holds {values.raw.type}, which no feature reads")
    if values.kind == "bool":
        return _made(values, _categorical(values, rows), "true and false -> ids")
    if values.kind == "time":
        return _time(values, None, times(values.raw, None))
    if values.kind == "integer":
        return _integer(values, rows)
    if values.kind == "number":
        return _decimal_or_float(values)
    if values.kind == "list":
        return _list(values)
    if values.kind == "vector":
        return _vector(values)
    return _text(values, rows)


def _list(values: Values) -> Finding:
    lengths = pc.list_value_length(values.found).to_numpy(zero_copy_only=False)
    keep = values.keys == "string" and len(pc.unique(pc.list_flatten(values.found))) <= KEEP_STRINGS_UP_TO
    bag = Bag(**_named(values), dtype=values.keys, keep_strings=keep, pooling="mean")
    texts = ", texts kept for exports" if keep else ""
    return _made(values, bag, f"lists of {np.mean(lengths):.1f} ids on average -> bag{texts}")


def _integer(values: Values, rows: int | None) -> Finding:
    found = values.found
    format = number_time_format(found) if names_time(values.name) else None
    if format is not None:
        return _time(values, format, times(values.raw, format))
    wide = bool(pa.types.is_uint64(values.raw.type) or (found.dtype == np.uint64 and found.max() >= 2**63))
    if names_number(values.name) and values.distinct > 2 and not wide:
        return _number(values, "whole numbers named like an amount")
    if values.distinct <= _FEW:
        why = "few whole numbers"
    elif names_id(values.name):
        why = "whole numbers named like ids"
    elif wide or int(found.max()) >= _LARGE_ID or int(found.min()) <= -_LARGE_ID:
        why = "whole numbers as large as hashes"
    elif _looks_counted(found):
        return _number(values, "whole numbers, the rarer the larger, as counts are")
    else:
        why = "whole numbers without the shape of counts"
    return _made(values, _categorical(values, rows), f"{_distinct(values)}; {why} -> ids")


def _decimal_or_float(values: Values) -> Finding:
    if values.decimal or bool(np.any(values.found != np.rint(values.found))):
        return _number(values, "decimals" if values.decimal else "numbers with a fraction")
    if names_id(values.name):
        ids = Categorical(**_named(values), dtype="int64")
        return _left_out(values, (ids,), "ids that were made floats; write them as integers to use it")
    return _number(values, "floats")


def _number(values: Values, what: str) -> Finding:
    found = values.found.astype(np.float64)
    log = _is_skewed(found)
    feature = Dense(**_named(values), transform="log1p" if log else "none", standardize=not log)
    low, middle, high = (f"{q:.6g}" for q in np.quantile(found, [0.0, 0.5, 1.0]))
    how = ", skewed -> number, log1p" if log else " -> number, standardized"
    return _made(values, feature, f"{_distinct(values)}, {low} to {high}, half below {middle}; {what}{how}")


def _vector(values: Values) -> Finding:
    lengths = np.unique(pc.list_value_length(values.found).to_numpy(zero_copy_only=False))
    if len(lengths) != 1 or lengths[0] < 1:
        return _left_out(values, (), "lists of numbers of different lengths, which no feature reads")
    size = int(lengths[0])
    return _made(values, Dense(**_named(values), size=size), f"lists of {size} numbers -> vector")


def _text(values: Values, rows: int | None) -> Finding:
    distinct = values.found.unique().to_pylist()
    for separator in _SEPARATORS:
        bag = _split(values, distinct, separator)
        if bag is not None:
            return bag
    why = f"{_distinct(values)}; text -> ids"
    categorical = _categorical(values, rows)
    if categorical.keep_strings:
        why += ", texts kept for exports"
    return _made(values, categorical, why)


def _time(values: Values, format: str | None, ns: I64) -> Finding:
    parts: tuple[TimePartName, ...] = ("hour", "weekday") if has_hours(ns[ns != NO_TIME]) else ("weekday",)
    features = tuple(TimePart(f"{values.name}_{part}", part=part, column=values.name, format=format) for part in parts)
    written = {None: "times", "s": "seconds since 1970", "ms": "milliseconds since 1970"}.get(
        format, f'times as "{format}"'
    )
    why = f"{written} -> {' and '.join(parts)}{_missing(values)}"
    return Finding(column=values.name, features=features, why=why, ns=ns, format=format)


# ---- evidence -----------------------------------------------------------------------------------------------------


def _looks_counted(found: npt.NDArray[Any]) -> bool:
    """Whether small values are common and large ones rare; how popular an id is has nothing to do with its value."""
    if found.min() < 0:
        return True
    distinct, counts = np.unique(found, return_counts=True)
    lowest, *_, highest = (int(quarter.sum()) for quarter in np.array_split(counts, 4))
    apart = (int(distinct[-1]) - int(distinct[0])) / len(distinct)
    return lowest > len(found) / 2 and lowest > 4 * highest and apart < _FAR_APART


def _is_skewed(found: npt.NDArray[np.float64]) -> bool:
    """Not negative but for a few, and with a tail: log1p suits it."""
    if len(found) == 0 or np.mean(found < 0) > 0.1 or found.min() < -10:
        return False
    usual = max(float(np.median(found)), 1.0)
    return bool(np.quantile(found, 0.99) >= 5 * usual or found.max() >= 50 * usual)


def _is_row_number(values: Values, feature: Feature) -> bool:
    """No value is there twice, so nothing can be learnt of one."""
    if values.kind not in ("integer", "text") or values.count < _MANY_ROWS or values.distinct < values.count:
        return False
    if isinstance(feature, Dense):
        return values.kind == "integer" and bool(np.all(np.diff(values.found.astype(np.float64)) == 1))
    return isinstance(feature, Categorical)


def _distinct(values: Values) -> str:
    return f"{values.distinct:,} distinct of {values.count:,} sampled"


def _missing(values: Values) -> str:
    return f"; {values.missing / values.sampled:.1%} missing" if values.missing else ""


def _split(values: Values, distinct: list[str], separator: str) -> Finding | None:
    """The texts as several ids each, where the same ones come back in many combinations."""
    split = [[token for token in text.split(separator) if token] for text in distinct]
    several = np.mean([len(tokens) > 1 for tokens in split])
    if len(distinct) < 10 or several < (0.3 if separator in "|;" else 0.5):
        return None
    tokens = [token for tokens in split for token in tokens]
    if separator == " " and (vector := _text_vector(values, split)) is not None:
        return vector
    known = set(tokens)
    if len(tokens) < 2 * len(known) or any(text.startswith(("[", "{", "http")) for text in distinct[:10]):
        return None
    weighted = all(re.fullmatch(r".+:[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", token) for token in known)
    ids = {token.rpartition(":")[0] for token in known} if weighted else known
    keys = _key_type(ids) if values.raw.untyped else "string"
    bag = Bag(
        **_named(values),
        dtype=keys,
        keep_strings=keys == "string" and len(ids) <= KEEP_STRINGS_UP_TO,
        separator=separator,
        pooling="mean",
        weight_separator=":" if weighted else None,
    )
    per_text = len(tokens) / len(split)
    seen = f"{per_text:.1f} of {len(ids):,} ids a text, separated by {separator!r}"
    return _made(values, bag, f"{_distinct(values)}; {seen}{', with weights' if weighted else ''} -> bag")


def _text_vector(values: Values, split: list[list[str]]) -> Finding | None:
    """Texts such as "0.1 -2.5 3" of equally many numbers."""
    sizes = {len(tokens) for tokens in split}
    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
    tokens = [token for tokens in split for token in tokens]
    if len(sizes) != 1 or not all(map(number.fullmatch, tokens)) or not any("." in token for token in tokens):
        return None
    (size,) = sizes
    return _made(values, Dense(**_named(values), size=size), f"texts of {size} numbers -> vector")


def _key_type(texts: Iterable[str]) -> KeyType:
    """What ids written as text are: whole numbers only if each is written as a number is."""
    found = list(texts)
    if not all(re.fullmatch(r"0|-?[1-9]\d*", text) for text in found):
        return "string"
    low, high = min(map(int, found)), max(map(int, found))
    return "int64" if low >= -(2**63) and high < 2**63 else "uint64" if low >= 0 and high < 2**64 else "string"


# ---- making -------------------------------------------------------------------------------------------------------


def _made(values: Values, feature: Feature, why: str) -> Finding:
    return Finding(column=values.name, features=(feature,), why=why + _missing(values), markers=values.markers)


def _left_out(values: Values, features: tuple[Feature, ...], why: str) -> Finding:
    return Finding(column=values.name, features=features, why=why, left_out=True)


def _categorical(values: Values, rows: int | None) -> Categorical:
    keep = values.kind == "text" and values.distinct_of(rows) <= KEEP_STRINGS_UP_TO
    return Categorical(**_named(values), dtype=values.keys, keep_strings=keep)


def _named(values: Values) -> dict[str, Any]:
    """A feature's name, with its column where that name is not allowed."""
    if values.name.endswith(RESERVED_SUFFIXES):
        return {"name": f"{values.name}_", "column": values.name}
    return {"name": values.name}
