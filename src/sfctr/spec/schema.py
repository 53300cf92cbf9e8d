"""What the columns of a click log mean: features, labels, weights, time. Nouns that check themselves and read no data.

A *feature* turns one column (or several) into what a model gets. Kinds by what they become:

  number       Dense                                 float32 [B, width]
  one key      Categorical, Bucket, TimePart, Cross  a row of `table` for every example, pooled to [B, dim]
  many keys    Bag                                   pooled to [B, dim]; an empty bag pools to zero
  ordered keys Sequence                              [B, max_length, dim] with a mask

Key rules (ids.md in docs/format gives the exact bits): integers and bools are their own 64 bits, strings the 64-bit
XXH3 of their UTF-8 bytes; a missing value of a one-key feature owns a row of its own in the table (its key is null),
a missing or empty list is empty, and an empty string is a missing value.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import msgspec

from .errors import ConfigError, SchemaError, nearest
from .tables import Pooling

KeyType = Literal["auto", "int64", "uint64", "bool", "string"]
"""How a column's values become keys. "auto" is decided from the data when a source is opened, and then recorded."""

RESERVED_SUFFIXES = (".mask", ".linear")
"""Names that features() adds beside a feature's own, so no feature may end in them."""


def _lists_to_tuples(struct: msgspec.Struct) -> None:
    """In Python a list is natural where the struct, to stay frozen, holds a tuple."""
    for name in struct.__struct_fields__:
        if isinstance(getattr(struct, name), list):
            msgspec.structs.force_setattr(struct, name, tuple(getattr(struct, name)))


class _Feature(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    name: str
    """Name of its entry among a model's inputs, and of its column and table where these are not given."""

    def __post_init__(self) -> None:
        _lists_to_tuples(self)
        if not self.name or self.name.endswith(RESERVED_SUFFIXES):
            raise SchemaError(
                f"feature name {self.name!r} must not be empty or end in {' or '.join(RESERVED_SUFFIXES)}"
            )
        self._check()

    def _check(self) -> None:
        """Refuse options that do not fit together."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that this feature reads."""
        raise NotImplementedError


class Dense(_Feature, frozen=True, kw_only=True, tag="dense"):
    """A number, or a fixed-size vector of numbers.

    Becomes float32 [B, size], after `clip`, then `transform`, then standardisation. Missing and NaN become 0 *after*
    those steps; with `indicator` one further column is 1 where the value was missing.
    """

    column: str | None = None
    """Column to read; the feature's name by default."""
    size: int = 1
    """Length of the vector; 1 reads a plain number."""
    transform: Literal["none", "log1p"] = "none"
    """"log1p" is Criteo's rule ln(1 + max(x, 0))."""
    negatives: Literal["clip", "refuse"] = "clip"
    """With log1p: negative values count as 0, or are refused."""
    clip: tuple[float, float] | None = None
    """Bounds (low, high) applied to the raw value."""
    standardize: bool = False
    """Subtract the mean and divide by the standard deviation of the training rows (after `transform`)."""
    mean: float | None = None
    """Filled in from the training rows when `standardize` is set and a run begins, or given by hand."""
    std: float | None = None
    """As mean."""
    indicator: bool = True
    """Add a column that says whether the value was missing."""
    serve_as: float | None = None
    """A fixed value used instead of the column when scoring."""

    def _check(self) -> None:
        if self.size < 1:
            raise SchemaError(f"feature '{self.name}': size is {self.size} and must be at least 1")
        if self.clip is not None and not self.clip[0] <= self.clip[1]:
            raise SchemaError(f"feature '{self.name}': clip is {self.clip}, and its low end exceeds its high end")
        if (self.mean is None) != (self.std is None):
            raise SchemaError(f"feature '{self.name}': give both mean and std, or neither")
        if self.std is not None and self.std <= 0:
            raise SchemaError(f"feature '{self.name}': std is {self.std} and must be above 0")
        if self.size > 1 and self.standardize:
            raise SchemaError(f"feature '{self.name}': standardize needs size 1")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column or self.name,)

    @property
    def width(self) -> int:
        """Columns of the tensor a model gets."""
        return self.size + int(self.indicator)


class _Keyed(_Feature, frozen=True, kw_only=True):
    table: str | None = None
    """Table to look keys up in; one of the feature's own name by default."""

    @property
    def table_name(self) -> str:
        return self.table or self.name


class Categorical(_Keyed, frozen=True, kw_only=True, tag="categorical"):
    """One key for every row: an id, a string, a bool. Missing has a row of its own."""

    column: str | None = None
    """Column to read; the feature's name by default."""
    dtype: KeyType = "auto"
    """What the values are as keys; "auto" is decided from the data, and recorded."""
    keep_strings: bool = False
    """Remember the text of every hashed key, so that exports show it (costs the memory of the distinct strings)."""
    serve_as: int | str | bool | None = None
    """A fixed value used instead of the column when scoring, such as position 1."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column or self.name,)


class Bucket(_Keyed, frozen=True, kw_only=True, tag="bucket"):
    """A number cut at `boundaries` into len(boundaries) + 1 keys: key k counts the boundaries at or below the value."""

    boundaries: tuple[float, ...]
    """Rising numbers at which the value is cut."""
    column: str | None = None
    """Column to read; the feature's name by default."""
    serve_as: float | None = None
    """A fixed value used instead of the column when scoring."""

    def _check(self) -> None:
        ends = (float("-inf"), *self.boundaries, float("inf"))
        if len(ends) == 2 or not all(a < b for a, b in pairwise(ends)):
            raise SchemaError(f"feature '{self.name}': boundaries must be a rising list of at least one number")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column or self.name,)


TimePartName = Literal["hour", "weekday", "day", "month", "hour_of_week"]


class TimePart(_Keyed, frozen=True, kw_only=True, tag="time_part"):
    """A part of a timestamp as a key: hour 0-23, weekday 0 (Monday) - 6, day 1-31, month 1-12, hour_of_week 0-167.

    The column is read as the schema's TimeColumn of that name if there is one, else by `format`.
    """

    part: TimePartName
    """Which part of the timestamp is the key."""
    column: str
    """Column to read."""
    format: str | None = None
    """strptime format, "s", "ms", "us" or "ns" since 1970 for numbers; None: a timestamp or ISO 8601 text."""
    zone: str = "UTC"
    """Zone in which the part is read; naive times are taken to be UTC."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Cross(_Keyed, frozen=True, kw_only=True, tag="cross"):
    """The combination of two or more key columns as one key (their keys are hashed together, order matters)."""

    of: tuple[str, ...]
    """Columns to combine, each read as a key column; a missing value is a value of its own here."""
    dtypes: tuple[KeyType, ...] | None = None
    """Key type of each column; None: "auto" for all."""

    def _check(self) -> None:
        if len(self.of) < 2:
            raise SchemaError(f"feature '{self.name}': a cross needs at least two columns in 'of'")
        if self.dtypes is not None and len(self.dtypes) != len(self.of):
            raise SchemaError(
                f"feature '{self.name}': dtypes has {len(self.dtypes)} entries for {len(self.of)} columns"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.of


class _Listed(_Keyed, frozen=True, kw_only=True):
    column: str | None = None
    """Column to read; the feature's name by default."""
    dtype: KeyType = "auto"
    """What the values are as keys; "auto" is decided from the data, and recorded."""
    keep_strings: bool = False
    """Remember the text of every hashed key, so that exports show it (costs the memory of the distinct strings)."""
    separator: str | None = None
    """Text columns: what separates the ids. None: the column holds lists (or, as text, one id)."""


class Bag(_Listed, frozen=True, kw_only=True, tag="bag"):
    """Any number of keys for every row, pooled. Missing or empty: pools to zero and trains nothing."""

    pooling: Pooling = "sum"
    """How the rows of a bag become one vector; the mean of none is zero."""
    weights: str | None = None
    """Column of weights, a list as long as the ids'. Under "mean" the sum is divided by the sum of the weights."""
    weight_separator: str | None = None
    """Text such as "12:0.5 7:2": what stands between an id and its weight (here ":", with separator " ")."""
    max_length: int | None = None
    """Keep the first this many ids; None keeps all."""

    def _check(self) -> None:
        if self.weights is not None and self.weight_separator is not None:
            raise SchemaError(f"feature '{self.name}': give weights or weight_separator, not both")
        if self.weight_separator is not None and self.separator is None:
            raise SchemaError(f"feature '{self.name}': weight_separator needs a separator")
        if self.max_length is not None and self.max_length < 1:
            raise SchemaError(f"feature '{self.name}': max_length is {self.max_length} and must be at least 1")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column or self.name, *((self.weights,) if self.weights else ()))


class Sequence(_Listed, frozen=True, kw_only=True, tag="sequence"):
    """Keys in order, oldest first; the latest `max_length` are kept, left-aligned, with a mask.

    A side column (such as the category of each item of a history) is a Sequence of its own with `aligned_with`: its
    lists must be as long as the other's, and a null in either drops the position in both.
    """

    max_length: int = 50
    """Keep the latest this many."""
    aligned_with: str | None = None
    """Name of the Sequence feature whose positions this one shares."""
    target: str | None = None
    """Name of the one-key feature that this history is compared with (the candidate, for attention models)."""

    def _check(self) -> None:
        if self.max_length < 1:
            raise SchemaError(f"feature '{self.name}': max_length is {self.max_length} and must be at least 1")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column or self.name,)


Feature = Dense | Categorical | Bucket | TimePart | Cross | Bag | Sequence
KeyedFeature = Categorical | Bucket | TimePart | Cross | Bag | Sequence
OneKeyFeature = Categorical | Bucket | TimePart | Cross


class TimeColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The column that orders the data in time."""

    column: str
    """Column to read."""
    format: str | None = None
    """As in TimePart: a strptime format (of integers too: "%y%m%d%H" reads 14102100), an epoch unit, or None."""


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which columns are labels, features, weight and time. Columns it does not name are ignored, with one line."""

    label: str | tuple[str, ...]
    """Label column or columns: 0/1, bool, or probabilities in [0, 1]; null masks the row for that label."""
    features: tuple[Feature, ...]
    """What a model gets, one entry each."""
    weight: str | None = None
    """Column of row weights, >= 0."""
    time: TimeColumn | str | None = None
    """The time column; data are then read in file order unless shuffling is asked for."""
    keep: tuple[str, ...] = ()
    """Further columns carried with each batch as keys for grouped and sliced metrics; a model does not see them."""

    def __post_init__(self) -> None:
        _lists_to_tuples(self)
        if not self.labels or not all(self.labels):
            raise SchemaError("a schema needs at least one label column")
        if len(set(self.labels)) < len(self.labels):
            raise SchemaError(f"the labels {', '.join(self.labels)} name a column twice; name each once")
        if not self.features:
            raise SchemaError("a schema needs at least one feature")
        self._check_names()
        for feature in self.features:
            if isinstance(feature, Sequence):
                self._check_reference(feature, "aligned_with", feature.aligned_with, Sequence, "another sequence")
                self._check_reference(feature, "target", feature.target, OneKeyFeature, "a feature with one key a row")
        self._check_shared_tables()

    def _check_names(self) -> None:
        seen: set[str] = set()
        for feature in self.features:
            if feature.name in seen:
                raise SchemaError(
                    f"feature '{feature.name}' is there twice; names must differ (use column= for the source)"
                )
            seen.add(feature.name)
            taken = [c for c in feature.columns if c in self.labels]
            if taken:
                raise SchemaError(
                    f"feature '{feature.name}' reads the label column '{taken[0]}': a model would see its answer"
                )

    def _check_reference(self, owner: Sequence, role: str, name: str | None, kinds: Any, wanted: str) -> None:
        if name is None:
            return
        by_name = {f.name: f for f in self.features}
        if name == owner.name or not isinstance(by_name.get(name), kinds):
            raise SchemaError(
                f"feature '{owner.name}': {role} is '{name}', which is not {wanted}{nearest(name, by_name)}"
            )

    def _check_shared_tables(self) -> None:
        """An export shows the text of every key of a table or of none."""
        first: dict[str, Categorical | Bag | Sequence] = {}
        for feature in self.features:
            if not isinstance(feature, Categorical | Bag | Sequence):
                continue
            other = first.setdefault(feature.table_name, feature)
            if other.keep_strings != feature.keep_strings:
                keeps, does_not = (other, feature) if other.keep_strings else (feature, other)
                raise SchemaError(
                    f"table '{feature.table_name}': feature '{keeps.name}' keeps the strings of its keys and feature"
                    f" '{does_not.name}' does not; set keep_strings alike in both, or give them tables of their own"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def time_column(self) -> TimeColumn | None:
        return TimeColumn(self.time) if isinstance(self.time, str) else self.time

    @property
    def dense(self) -> tuple[Dense, ...]:
        return tuple(f for f in self.features if isinstance(f, Dense))

    @property
    def keyed(self) -> tuple[KeyedFeature, ...]:
        return tuple(f for f in self.features if not isinstance(f, Dense))

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SchemaError(f"there is no feature '{name}'{nearest(name, (f.name for f in self.features))}")


def key_type_of_table(schema: Schema) -> dict[str, KeyType]:
    """Key type of each table that the schema's features use; SchemaError where two features of a table differ."""
    types: dict[str, tuple[KeyType, str]] = {}
    for feature in schema.keyed:
        dtype: KeyType = feature.dtype if isinstance(feature, Categorical | Bag | Sequence) else "int64"
        if isinstance(feature, Cross):
            dtype = "uint64"
        known, first = types.setdefault(feature.table_name, (dtype, feature.name))
        if known != dtype:
            raise SchemaError(
                f"table '{feature.table_name}': feature '{first}' has {known} keys and feature '{feature.name}' {dtype}"
                " keys; give them one dtype, or tables of their own"
            )
    return {table: dtype for table, (dtype, _) in types.items()}


def check_fixed(value: object, low: float, what: str) -> None:
    """Refuse a number below `low`; `what` names the option."""
    if not isinstance(value, int | float) or value < low:
        raise ConfigError(f"{what} is {value!r} and must be at least {low:g}")
