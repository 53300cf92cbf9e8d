"""From batches to a report: exact numbers on paper, estimates near them, and advice that holds what it says."""

import itertools
from random import Random

import msgspec
import numpy as np
import pytest

from sfctr.data import open_source
from sfctr.spec.errors import ConfigError, DataError
from sfctr.spec.schema import Bag, Categorical, Schema
from sfctr.trace import Accesses, TracedTable, TraceReport, Tracing, picture, trace_batches, write_trace
from sfctr.trace.caches import Caches
from sfctr.trace.recording import Recording
from sfctr.trace.tracing import curve_sizes

from . import twins
from .test_logs import batch, one

ROW_BYTES, INDEX_BYTES = 100, 24


def source_of(items, *, batch_size, **columns):
    """A source of rows in order, with a column `item` and others."""
    rows = [dict(zip(("item", *columns), row, strict=True)) for row in zip(items, *columns.values(), strict=True)]
    features = [Categorical("item"), *(Bag(name) for name in columns)]
    schema = Schema(label="click", features=features)
    return open_source(rows, schema, batch_size=batch_size, labels="none")


def tables(*names):
    return [TracedTable(name=name, row_bytes=ROW_BYTES, index_bytes=INDEX_BYTES) for name in names]


def report_of(items, *, batch_size, options=None, **columns) -> TraceReport:
    with source_of(items, batch_size=batch_size, **columns) as source:
        names = ("item", *columns)
        return trace_batches(source, source.schema, tables(*names), options or Tracing())


def zipf(num: int, keys: int, seed: int = 0) -> list[int]:
    draw = Random(seed)
    return [int(keys ** draw.random()) for _ in range(num)]


def test_every_number_of_a_small_trace_is_right():
    items = [1, 2, 1, None, 3, 1, 3, 3, 2]  # batches {1, 2, missing}, {3, 1}, {2}: read in fours
    report = report_of(items, batch_size=4, options=Tracing(window=1))
    (table,) = report.tables
    assert (report.rows, report.batches, report.window) == (9, 3, 1)
    assert (table.lookups, table.missing, table.accesses, table.rows) == (9, 1 / 9, 6, 4)
    assert (table.unique.mean, table.unique.p50, table.unique.max) == (2.0, 2, 3)
    assert (table.window_rows.mean, table.window_rows.max) == (8 / 3, 4)
    assert (table.row_bytes, table.index_bytes, table.all_bytes) == (ROW_BYTES, 96, 496)
    assert table.reuse.repeats == 2  # of 1 after a batch, of 2 after two
    assert table.reuse.used_once == 0.5
    assert table.reuse.within_batches == {"1": 0.5, "4": 1.0, "16": 1.0, "64": 1.0}
    # 1 comes after 2, missing and 3, so it is the fourth; 2 comes after missing, 3 and 1.
    assert (table.reuse.distance_p50, table.reuse.distance_p99) == (4, 4)
    assert table.sizes == (1, 2, 3, 4)
    assert table.size_bytes == (100, 200, 300, 400)
    curves = {curve.policy: curve.hit_rates for curve in table.curves}
    assert curves["lru"] == (0.0, 0.0, 0.0, 1.0)
    assert [curve.standard_errors for curve in table.curves] == [None] * 3


def test_curves_are_replays_by_the_twins():
    items = zipf(600, 60)
    report = report_of(items, batch_size=50, options=Tracing(window=2))
    batches = [list(dict.fromkeys(items[start : start + 50])) for start in range(0, 600, 50)]
    (table,) = report.tables
    repeats = sum(map(len, batches)) - len(set(items))
    assert table.reuse.repeats == repeats
    for curve in table.curves:
        found = [twins.hits(curve.policy, batches, size, curve.window) / repeats for size in table.sizes]
        assert curve.hit_rates == pytest.approx(found)


def test_where_the_window_itself_needs_more_than_the_target_the_advice_is_to_hold_it():
    items = zipf(4000, 2000)
    (table,) = report_of(items, batch_size=100, options=Tracing(window=10, target=0.5)).tables
    assert table.advice.rows == table.window_rows.max
    assert table.advice.hit_rate > 0.5


def test_the_advice_reaches_its_target_holds_the_window_and_could_not_be_smaller():
    options = Tracing(window=1, target=0.8)
    items = zipf(4000, 2000)
    (table,) = report_of(items, batch_size=100, options=options).tables
    accesses = Accesses.of_batches([list(dict.fromkeys(items[s : s + 100])) for s in range(0, 4000, 100)])

    def rate(policy, rows):
        return accesses.hits(policy, [rows], window=1)[0] / accesses.num_repeats

    advice = table.advice
    assert not advice.keep_all
    assert advice.rows > table.window_rows.max
    assert advice.hit_rate == pytest.approx(rate("window", advice.rows)) and advice.hit_rate >= 0.8
    assert rate("window", round(advice.rows * 0.98) - 1) < 0.8
    assert rate("lru", advice.lru_rows) >= advice.hit_rate
    assert rate("lru", round(advice.lru_rows * 0.98) - 1) < advice.hit_rate
    assert advice.bytes == advice.rows * ROW_BYTES + table.rows * INDEX_BYTES
    assert advice.lru_bytes == advice.lru_rows * ROW_BYTES + table.rows * INDEX_BYTES


def test_a_table_that_every_batch_uses_whole_is_to_be_kept_whole():
    report = report_of([1, 2, 3] * 20, batch_size=6)
    (table,) = report.tables
    assert (table.advice.keep_all, table.advice.rows, table.advice.hit_rate) == (True, 3, 1.0)
    assert report.advised_bytes == report.all_bytes == 3 * (ROW_BYTES + INDEX_BYTES)


def test_a_table_whose_keys_never_come_back_has_no_curves():
    report = report_of(range(100), batch_size=10)
    (table,) = report.tables
    assert (table.reuse, table.curves, table.sizes, table.advice) == (None, (), (), None)
    assert report.advised_bytes == table.all_bytes


def test_a_bag_that_is_always_empty_is_a_table_without_rows():
    report = report_of([1, 1, 1], batch_size=2, tags=[[], [], []])
    tags = report.tables[1]
    assert (tags.lookups, tags.missing, tags.rows, tags.advice) == (0, 0.0, 0, None)


def test_max_rows_cuts_the_stream_there_and_not_at_a_batch():
    report = report_of(range(100), batch_size=30, options=Tracing(max_rows=70))
    assert (report.rows, report.batches, report.tables[0].accesses) == (70, 3, 70)
    assert report_of(range(100), batch_size=30, options=Tracing(max_rows=1000)).rows == 100


def test_the_batch_size_is_what_decides_the_accesses():
    items = [1, 1, 2, 2] * 10
    assert report_of(items, batch_size=1).tables[0].accesses == 40
    assert report_of(items, batch_size=40).tables[0].accesses == 2


def test_no_batches_are_refused():
    schema = Schema(label="click", features=[Categorical("item", dtype="int64")])
    with pytest.raises(DataError, match="no rows to trace"):
        trace_batches([], schema, tables("item"))


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("window", -1, "window is -1 and must be at least 0"),
        ("target", 0.0, "target is 0.0 and must be above 0"),
        ("target", 1.5, "target is 1.5"),
        ("max_rows", 0, "max_rows is 0 and must be at least 1"),
    ],
)
def test_an_option_out_of_range_is_refused(option, value, expected):
    with pytest.raises(ConfigError, match=expected):
        Tracing(**{option: value})


@pytest.mark.parametrize(("num_rows", "expected"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 3, 4, 5))])
def test_sizes_of_a_small_table_are_all_there_are(num_rows, expected):
    assert curve_sizes(num_rows) == expected


def test_sizes_rise_in_equal_ratios_to_the_whole_table():
    sizes = curve_sizes(10_000_000)
    assert (len(sizes), sizes[0], sizes[-1]) == (19, 10_000, 10_000_000)
    assert all(b / a == pytest.approx(1000 ** (1 / 18), rel=1e-3) for a, b in itertools.pairwise(sizes))


@pytest.fixture(scope="module")
def sampled():
    """All of a stream, and what a bound leaves of it."""
    recordings = {}
    with source_of(zipf(400_000, 300_000), batch_size=4000) as source:
        for bound in (10**9, 1_000_000):
            recordings[bound] = Recording(source.schema, tables("item"), bound)
            for each in source.batches():
                recordings[bound].add(each)
    return [Caches(r.logs[0], int(r.unique().sum())) for r in recordings.values()]


def test_a_sample_tells_what_the_whole_would_within_its_error(sampled):
    whole, sample = sampled
    assert (whole.share, sample.share <= 0.5) == (1.0, True)
    assert sample.num_rows == pytest.approx(whole.num_rows, rel=0.03)
    assert sample.num_repeats == pytest.approx(whole.num_repeats, rel=0.03)
    sizes = [whole.num_rows // part for part in (50, 10, 4, 2)]
    for policy, window in (("lru", 0), ("lfu", 0), ("window", 4)):
        exact = whole.hit_rates(policy, sizes, window=window)
        error = sample.errors(policy, sizes, window=window)
        assert np.all((error > 0) & (error < 0.05))
        assert np.all(np.abs(sample.hit_rates(policy, sizes, window=window) - exact) < 4 * error + 0.005), policy
    assert whole.errors("lru", sizes) is None
    assert sample.smallest("lru", 0.9) == pytest.approx(whole.smallest("lru", 0.9), rel=0.05)


def is_in_half(key: int) -> bool:
    """Whether a log that was halved keeps a key."""
    recording = Recording(Schema(label="click", features=[Categorical("item")]), tables("item"), 10**6)
    recording.add(batch(item=one([key])))
    return recording.logs[0].part(0, 1).num_rows == 1


def test_a_sample_that_holds_no_key_twice_claims_no_reuse():
    left_out = next(key for key in range(100) if not is_in_half(key))
    items = [*range(150_000), left_out]
    (table,) = report_of(items, batch_size=20_000, options=Tracing(memory_bytes=1_000_000)).tables
    assert table.share_kept < 1
    assert (table.reuse, table.curves, table.advice) == (None, (), None)


def test_a_trace_says_of_what_it_is_an_estimate():
    options = Tracing(memory_bytes=1_000_000)
    (table,) = report_of(zipf(300_000, 250_000), batch_size=4000, options=options).tables
    assert table.share_kept < 1
    assert all(len(curve.standard_errors) == len(table.sizes) for curve in table.curves)
    assert 0 < max(itertools.chain(*(curve.standard_errors for curve in table.curves))) < 0.05
    assert table.advice.standard_error is not None


def test_what_is_written_reads_back(tmp_path):
    report = report_of(zipf(300, 40), batch_size=20)
    paths = write_trace(report, picture(report), tmp_path)
    assert [path.name for path in paths] == ["trace.json", "trace.svg"]
    assert msgspec.json.decode(paths[0].read_bytes(), type=TraceReport) == report


def test_a_trace_is_the_same_every_time():
    items = zipf(2000, 300)
    assert report_of(items, batch_size=64) == report_of(items, batch_size=64)
