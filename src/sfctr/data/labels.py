"""Labels and row weights: numbers that must lie where their meaning allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sfctr.spec.batch import F32, Bools

from .column import Column, decoded, shown
from .numeric import numbers
from .texts import F64

_TRUE, _FALSE = (b"true", b"True", b"TRUE"), (b"false", b"False", b"FALSE")
_LABEL_REMEDY = "a label is 0, 1, a probability between them, or missing"


def labels(columns: Sequence[Column], rows: int) -> tuple[F32, Bools]:
    """float32 [B, K] labels, 0 where missing, and bool [B, K], True where known."""
    values, known = np.zeros((rows, len(columns)), np.float32), np.zeros((rows, len(columns)), np.bool_)
    for k, column in enumerate(columns):
        label, missing = _label(decoded(column))
        values[:, k], known[:, k] = np.where(missing, 0.0, label), ~missing
    return values, known


def _label(column: Column) -> tuple[F64, Bools]:
    if column.is_text:
        return _text_label(column)
    if pa.types.is_temporal(column.type) or pa.types.is_nested(column.type):
        column.place.refuse(f"holds {column.type} values", remedy=_LABEL_REMEDY)
    label, missing = numbers(column)
    _refuse_labels(label, missing, column)
    return label, missing


def _text_label(column: Column) -> tuple[F64, Bools]:
    """Numbers, or the words true and false as CSV writers spell them."""
    texts, missing = column.texts()
    words = texts.nulls(_TRUE + _FALSE) & ~missing
    if not words.any():
        label = _refusing_words(column, missing)
    else:
        label = np.where(texts.nulls(_TRUE), 1.0, 0.0)
        label[~words] = _refusing_words(column.take(np.flatnonzero(~words)), missing[~words])
    return label, missing


def _refusing_words(column: Column, missing: Bools) -> F64:
    texts, _ = column.texts()
    out, bad = texts.numbers()
    if bad >= 0:
        column.place.refuse(f"label {texts.shown(bad)} is no number", bad, remedy=_LABEL_REMEDY)
    _refuse_labels(out, missing, column)
    return out


def _refuse_labels(label: F64, missing: Bools, column: Column) -> None:
    bad = np.flatnonzero(~missing & ~((label >= 0) & (label <= 1)))
    if len(bad):
        column.place.refuse(f"label {shown(label[bad[0]])} lies outside of [0, 1]", int(bad[0]), remedy=_LABEL_REMEDY)


def weights(column: Column) -> F32:
    """float32 [B] row weights."""
    weight, _ = numbers(column)
    narrow: npt.NDArray[np.float32] = weight.astype(np.float32)
    bad = np.flatnonzero(~((narrow >= 0) & np.isfinite(narrow)))
    if len(bad):
        value = weight[bad[0]]
        found = (
            "weight is missing" if np.isnan(value) else f"weight {shown(value)} is not a finite number of at least 0"
        )
        column.place.refuse(found, int(bad[0]), remedy="give every row a weight of 0 or more")
    return narrow
