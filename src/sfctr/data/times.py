"""Time columns as nanoseconds since 1970 in UTC, and parts of them in a zone, daylight saving included."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sfctr.spec.batch import I64, Bools
from sfctr.spec.errors import ConfigError, SchemaError
from sfctr.spec.schema import TimePartName

from .column import Column, decoded, nulls_of, shown, values_of
from .keys import OneKey
from .numeric import numbers

NO_TIME = np.int64(-(2**63))
"""What a missing time reads as."""

EPOCH_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Formats of times that are counted since 1970, with the nanoseconds of a unit."""
DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BAD = int(NO_TIME) + 1
_DIRECTIVE = re.compile("%(.)")
_FAST_DIRECTIVES = frozenset("YmdHMSyT%")
_ISO = "write times as 2014-10-29 or 2014-10-29T13:05:00, or give the column a format"


def times(column: Column, format: str | None) -> I64:
    """int64 nanoseconds since 1970, NO_TIME where missing. Naive times are taken to be UTC."""
    column = decoded(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), NO_TIME)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _from_temporal(column)
    if format in EPOCH_UNITS:
        return _from_epoch(column, EPOCH_UNITS[format])
    if pa.types.is_integer(kind):
        if format is None:
            column.place.refuse(
                f"holds {kind} values and has no time format", remedy='set a format such as "s", "ms" or "%y%m%d%H"'
            )
        column = column.with_array(pc.cast(column.array, pa.string()))
    if not column.is_text:
        column.place.refuse(f"holds {kind} values, which are no times", remedy=_ISO)
    return _from_texts(column, format)


def time_of(text: str, format: str | None, what: str) -> int:
    """Nanoseconds of one time given as an option: in the column's own format, or ISO 8601."""
    if format in EPOCH_UNITS and text.lstrip("-").isdecimal():
        return int(text) * EPOCH_UNITS[format]
    strptime = None if format in EPOCH_UNITS else format
    parsed = _parse(text, strptime) if strptime is not None else None
    parsed = _parse(text, None) if parsed is None else parsed
    if parsed is None:
        raise ConfigError(f"{what} is {text!r}, which is no time; {_ISO}")
    return parsed


def _from_temporal(column: Column) -> I64:
    nulls = column.nulls()
    if pa.types.is_timestamp(column.type):
        ticks, unit_ns = column.plain(), EPOCH_UNITS[column.type.unit]
    elif pa.types.is_date32(column.type):
        ticks = Column(pc.cast(column.array, pa.int32()), column.place).plain().astype(np.int64)
        unit_ns = DAY_S * 10**9
    else:
        ticks, unit_ns = Column(pc.cast(column.array, pa.int64()), column.place).plain(), 10**6
    return _scaled(ticks, unit_ns, nulls, column)


def _from_epoch(column: Column, unit_ns: int) -> I64:
    """Counts of seconds, or of parts of one, as numbers or texts."""
    if column.is_text:
        texts, missing = column.texts()
        ticks, bad = texts.int64s()
        if bad < 0:
            return _scaled(ticks, unit_ns, missing, column)
    elif pa.types.is_signed_integer(column.type) or (pa.types.is_integer(column.type) and column.type.bit_width < 64):
        return _scaled(column.plain().astype(np.int64), unit_ns, column.nulls(), column)
    values, _ = numbers(column)
    missing = np.isnan(values)
    with np.errstate(over="ignore"):
        ns = np.rint(np.where(missing, 0.0, values) * unit_ns)
    _refuse_range(np.abs(ns) >= 2.0**63, values, column)
    return np.where(missing, NO_TIME, ns.astype(np.int64))


def _scaled(ticks: I64, unit_ns: int, missing: Bools | None, column: Column) -> I64:
    if missing is not None:
        ticks = np.where(missing, 0, ticks)
    bound = (2**63 - 1) // unit_ns
    _refuse_range((ticks > bound) | (ticks < -bound), ticks, column)
    ns = ticks * unit_ns
    return ns if missing is None else np.where(missing, NO_TIME, ns)


def _refuse_range(bad: Bools, values: npt.NDArray[Any], column: Column) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        column.place.refuse(
            f"time {shown(values[index])} lies outside of the years 1678 to 2261", index, remedy="check the time format"
        )


def _from_texts(column: Column, format: str | None) -> I64:
    """Texts in one format. Few distinct texts often stand for many rows, so each is parsed once."""
    coded = pc.dictionary_encode(_valid_texts(column))
    distinct, codes = coded.dictionary, coded.indices
    parsed = _fast_iso(distinct) if format is None else _fast_strptime(distinct, format)
    if parsed is None:
        parsed = _one_by_one(distinct, format)
    rows = Column(codes, column.place)
    nulls = rows.nulls()
    out: I64 = np.append(parsed, NO_TIME)[rows.plain() if nulls is None else np.where(nulls, len(parsed), rows.plain())]
    bad = out == _BAD
    if bad.any():
        index = int(np.argmax(bad))
        wanted = f"the format {format!r}" if format is not None else "ISO 8601"
        column.place.refuse(
            f"time {column.texts()[0].shown(index)} does not follow {wanted}",
            index,
            remedy=_ISO if format is None else "correct the value, or the format",
        )
    return out


def _valid_texts(column: Column) -> Any:
    """The column's texts as an Arrow string array, null where missing. Refuses what is not UTF-8."""
    texts, missing = column.texts()
    texts.hashes(column.place)
    array = column.array
    if not pa.types.is_string(array.type) and not pa.types.is_large_string(array.type):
        array = pc.cast(pc.cast(array, pa.large_binary()), pa.large_string())
    return pc.if_else(pa.array(missing), pa.scalar(None, array.type), array) if missing.any() else array


def _fast_iso(texts: Any) -> I64 | None:
    """All texts by Arrow's own parser, or None where it cannot read them all."""
    zoned = pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
    zone = "UTC" if pc.all(zoned).as_py() else None
    try:
        ns: I64 = values_of(pc.cast(texts, pa.timestamp("ns", zone)))
    except pa.ArrowInvalid:
        return None
    return ns


def _fast_strptime(texts: Any, format: str) -> I64 | None:
    """All texts by Arrow's strptime, _BAD where one is no time; or None where the format is beyond it.

    It is stricter than Python's, which reads 141021 as 2 October, 1 o'clock under "%y%m%d%H". But it reads 31 February
    as 3 March, so days that such a slip can end on are read again, slowly, and both readings have to agree.
    """
    if not set(_DIRECTIVE.findall(format)) <= _FAST_DIRECTIVES:
        return None
    parsed = pc.strptime(texts, format=format, unit="ns", error_is_null=True)
    nulls = nulls_of(parsed)
    ns = values_of(parsed) if nulls is None else np.where(nulls, _BAD, values_of(parsed))
    suspect = np.flatnonzero((ns != _BAD) & (values_of(pc.day(parsed)) <= 3))
    slow = _one_by_one(texts.take(pa.array(suspect)), format)
    wrong = suspect[slow != ns[suspect]]
    if len(wrong):
        ns = ns.copy()
        ns[wrong] = _BAD
    return ns


def _one_by_one(texts: Any, format: str | None) -> I64:
    """_BAD where a text is no time."""
    found = (_parse(text, format) for text in texts.to_pylist())
    return np.asarray([_BAD if ns is None else ns for ns in found], np.int64)


def _parse(text: str, format: str | None) -> int | None:
    """Nanoseconds of one text, or None where it is no time in this format."""
    if format is None and text.isdecimal():  # 20141021 may be a date or an id: a format has to say so
        return None
    try:
        when = datetime.fromisoformat(text) if format is None else datetime.strptime(text, format)
    except ValueError:
        when = None
    if format is None and (when is None or "." in text):  # digits below a microsecond, which datetime drops
        fast = _fast_iso(pa.array([text]))
        if fast is not None:
            return int(fast[0])
    if when is None:
        return None
    since = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - _EPOCH
    ns = (since.days * DAY_S + since.seconds) * 10**9 + since.microseconds * 1000
    return ns if _BAD < ns < 2**63 else None


def zone_named(name: str, feature: str) -> ZoneInfo:
    """The zone. Raises SchemaError where there is none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SchemaError(
            f"feature '{feature}': there is no time zone {name!r}; name one such as \"Europe/Paris\""
        ) from None


def time_part(ns: I64, part: TimePartName, zone: ZoneInfo) -> OneKey:
    """Key of a part of each time, read in `zone`."""
    missing = ns == NO_TIME
    utc_s = np.where(missing, 0, ns) // 10**9
    local_s = utc_s + zone_offsets(utc_s, zone)
    days, hours = local_s // DAY_S, local_s % DAY_S // 3600
    weekdays = (days + 3) % 7  # 1970-01-01 was a Thursday
    if part == "hour":
        keys = hours
    elif part == "weekday":
        keys = weekdays
    elif part == "hour_of_week":
        keys = weekdays * 24 + hours
    else:
        months = days.astype("M8[D]").astype("M8[M]")
        if part == "month":
            keys = months.astype(np.int64) % 12 + 1
        else:
            keys = days - months.astype("M8[D]").astype(np.int64) + 1
    return OneKey(np.where(missing, 0, keys).astype(np.uint64), missing.view(np.uint8)).normal()


def zone_offsets(utc_s: I64, zone: ZoneInfo) -> I64:
    """Seconds by which clocks in `zone` are ahead of UTC at each time (seconds since 1970)."""
    if len(utc_s) == 0 or zone.key == "UTC":
        return np.zeros(len(utc_s), np.int64)
    years = utc_s[[utc_s.argmin(), utc_s.argmax()]].astype("M8[s]").astype("M8[Y]").astype(np.int64) + 1970
    tables = [_changes(zone, year) for year in range(int(years[0]), int(years[1]) + 1)]
    starts = np.concatenate([starts for starts, _ in tables])
    offsets = np.concatenate([offsets for _, offsets in tables])
    found: I64 = offsets[np.searchsorted(starts, utc_s, side="right") - 1]
    return found


@lru_cache(maxsize=4096)
def _changes(zone: ZoneInfo, year: int) -> tuple[I64, I64]:
    """When the offset of a zone changes in a year of UTC, its first second included, and the offset from then on."""

    def offset(second: int) -> int:
        ahead = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
        assert ahead is not None
        return int(ahead.total_seconds())

    first = int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
    last = int((datetime(year + 1, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
    starts, offsets = [first], [offset(first)]
    for day in range(first, last, DAY_S):
        low, high = day, min(day + DAY_S, last - 1)
        if offset(high) == offsets[-1]:
            continue
        while high - low > 1:  # offset(low) is the old one, offset(high) the new one
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == offsets[-1] else (low, middle)
        starts.append(high)
        offsets.append(offset(high))
    return np.asarray(starts, np.int64), np.asarray(offsets, np.int64)
