"""Times of every form, and their parts in a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfctr.data.column import Column
from sfctr.data.place import Place
from sfctr.data.times import NO_TIME, time_of, time_part, times, zone_offsets
from sfctr.spec.errors import ConfigError, DataError, SchemaError
from sfctr.spec.schema import Categorical, TimeColumn, TimePart

DAY, HOUR, SECOND = 86_400 * 10**9, 3600 * 10**9, 10**9
T = int(datetime(2014, 10, 21, 13, 5, 6, tzinfo=UTC).timestamp()) * SECOND


def ns_of(array, format=None) -> list[int | None]:
    found = times(Column(pa.array(array) if isinstance(array, list) else array, Place("here", column="t")), format)
    return [None if ns == NO_TIME else ns for ns in found.tolist()]


@pytest.mark.parametrize(
    ("array", "format", "expected"),
    [
        (pa.array([1, None], pa.timestamp("s")), None, [SECOND, None]),
        (pa.array([1, -1], pa.timestamp("ns")), None, [1, -1]),
        (pa.array([T // 1000], pa.timestamp("us", "Europe/Paris")), None, [T]),
        (pa.array([1, None], pa.date32()), None, [DAY, None]),
        (pa.array([DAY // 10**6], pa.date64()), None, [DAY]),
        (["2014-10-21T13:05:06", "2014-10-21 13:05:06Z", None, ""], None, [T, T, None, None]),
        (["2014-10-21T15:05:06+02:00"], None, [T]),
        (["2014-10-21 13:05:06.5", "2014-10-21 13:05:06.000000001"], None, [T + SECOND // 2, T + 1]),
        (["2014-10-21", "2014-10-21 13:05"], None, [T - 13 * HOUR - 306 * SECOND, T - 6 * SECOND]),
        (["14102113"], "%y%m%d%H", [T - 306 * SECOND]),
        ([14102113, None], "%y%m%d%H", [T - 306 * SECOND, None]),
        (["21/10/2014 13:05:06"], "%d/%m/%Y %H:%M:%S", [T]),
        (["21 Oct 2014"], "%d %b %Y", [T - 13 * HOUR - 306 * SECOND]),
        (["2014-10-21 13:05:06.25"], "%Y-%m-%d %H:%M:%S.%f", [T + SECOND // 4]),
        (["2014-10-21 15:05:06 +0200"], "%Y-%m-%d %H:%M:%S %z", [T]),
        ([T // SECOND, None], "s", [T, None]),
        ([T // 10**6], "ms", [T]),
        ([T // 1000], "us", [T]),
        (pa.array([T], pa.uint64()), "ns", [T]),
        (pa.array([7], pa.uint8()), "s", [7 * SECOND]),
        ([1.5, None], "s", [3 * SECOND // 2, None]),
        (["1.5", "", "-2"], "s", [3 * SECOND // 2, None, -2 * SECOND]),
        (pa.array(["2014-10-21"] * 2).dictionary_encode(), None, [T - 13 * HOUR - 306 * SECOND] * 2),
        (pa.nulls(1), None, [None]),
    ],
)
def test_times_of_every_form_are_nanoseconds_of_utc(array, format, expected):
    assert ns_of(array, format) == expected


@pytest.mark.parametrize(
    ("array", "format", "words"),
    [
        (
            ["2014-10-21", "yesterday"],
            None,
            "here, row 2, column 't': time 'yesterday' does not follow ISO 8601; write",
        ),
        (["20141021"], None, "time '20141021' does not follow ISO 8601"),
        (["2014-02-30"], None, "time '2014-02-30' does not follow ISO 8601"),
        (["2014-01-02", "2014-02-31"], "%Y-%m-%d", "row 2, column 't': time '2014-02-31' does not follow the format"),
        (["141021"], "%y%m%d%H", "time '141021' does not follow the format '%y%m%d%H'"),
        (["14102113x"], "%y%m%d%H", "does not follow the format"),
        ([14102113], None, "holds int64 values and has no time format; set a format"),
        ([1.5], None, "holds double values, which are no times"),
        ([True], "%Y", "holds bool values, which are no times"),
        ([0, 10**10], "s", "row 2, column 't': time 10000000000 lies outside of the years 1678 to 2261"),
        (["0", "1e300"], "s", "row 2, column 't': time 1e\\+300 lies outside"),
        (pa.array([0, 10**12], pa.timestamp("s")), None, "row 2, column 't': time 1000000000000 lies outside"),
        (["3014-10-21"], None, "time '3014-10-21' does not follow ISO 8601"),
    ],
)
def test_what_is_no_time_is_refused_with_its_row(array, format, words):
    with pytest.raises(DataError, match=words):
        ns_of(array, format)


@given(st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)))
def test_a_printed_time_is_read_back(when):
    ns = (when - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000
    assert ns_of([when.isoformat(), when.isoformat(" ")]) == [ns, ns]
    whole = when.replace(microsecond=0)
    assert ns_of([whole.strftime("%d.%m.%Y %H-%M-%S")], "%d.%m.%Y %H-%M-%S") == [ns - when.microsecond * 1000]


def test_an_option_may_follow_the_columns_format_or_iso():
    assert time_of("14102113", "%y%m%d%H", "o") == time_of("2014-10-21T13:00:00", "%y%m%d%H", "o") == T - 306 * SECOND
    assert time_of("2014-10-21T13:05:06Z", None, "o") == time_of(str(T // SECOND), "s", "o") == T
    with pytest.raises(ConfigError, match=r"data.valid_from is 'soon', which is no time; write"):
        time_of("soon", None, "data.valid_from")


ZONES = ["UTC", "Europe/Paris", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo"]


@given(st.lists(st.integers(-(10**9), 4 * 10**9), max_size=8), st.sampled_from(ZONES))
def test_offsets_of_a_zone_are_those_of_zoneinfo(seconds, name):
    zone = ZoneInfo(name)
    found = zone_offsets(np.array(seconds, np.int64), zone).tolist()
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert found == [(start + timedelta(seconds=s)).astimezone(zone).utcoffset().total_seconds() for s in seconds]


@pytest.mark.parametrize("name", ["Europe/Paris", "Australia/Lord_Howe"])
def test_clocks_change_to_the_second(name):
    zone = ZoneInfo(name)
    start = int(datetime(2014, 1, 1, tzinfo=UTC).timestamp())
    hours = np.arange(start, start + 365 * 86_400, 1800)
    changes = hours[1:][np.diff(zone_offsets(hours, zone)) != 0]
    assert len(changes) == 2
    for change in changes:
        around = zone_offsets(np.array([change - 1, change]), zone)
        assert around[0] != around[1]


@given(st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)), st.sampled_from(ZONES))
def test_parts_of_a_time_are_those_of_datetime(when, name):
    local = when.replace(tzinfo=UTC).astimezone(ZoneInfo(name))
    ns = np.array([(when - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000], np.int64)
    expected = {
        "hour": local.hour,
        "weekday": local.weekday(),
        "day": local.day,
        "month": local.month,
        "hour_of_week": local.weekday() * 24 + local.hour,
    }
    for part, value in expected.items():
        assert time_part(ns, part, ZoneInfo(name)).keys.tolist() == [value]


def test_time_features_follow_daylight_saving_and_know_missing_times(read, keys_of):
    table = pa.table({"t": ["2014-10-26T00:30:00Z", "2014-10-26T01:30:00Z", None]})
    found = read(table, TimePart("h", part="hour", column="t", zone="Europe/Paris"))
    assert keys_of(found, "h") == [2, 2, None]


def test_a_time_part_reads_the_time_column_by_the_time_columns_format(read, keys_of, text_file):
    path = text_file("hour,a\n14102113,1\n14102200,2\n")
    found = read(path, TimePart("h", part="hour", column="hour"), Categorical("a"), time=TimeColumn("hour", "%y%m%d%H"))
    assert keys_of(found, "h") == [13, 0]
    assert found.time.tolist() == [T - 306 * SECOND, T - 306 * SECOND + 11 * HOUR]


def test_an_unknown_zone_is_refused(read):
    with pytest.raises(SchemaError, match="feature 'h': there is no time zone 'Mars/Base'"):
        read(pa.table({"t": ["2014-10-26"]}), TimePart("h", part="hour", column="t", zone="Mars/Base"))
