"""The picture is well-formed, has a line for each policy of each table, and shows what the report says."""

from xml.etree import ElementTree

import pytest

from sfctr.spec.schema import Categorical, Schema
from sfctr.trace import TracedTable, Tracing, picture, trace_batches

from .test_logs import batch, one

SVG = "{http://www.w3.org/2000/svg}"


def drawn(**streams):
    """Report and picture of tables with these keys, four rows a batch."""
    schema = Schema(label="click", features=[Categorical(name) for name in streams])
    tables = [TracedTable(name=name, row_bytes=192, index_bytes=24) for name in streams]
    starts = range(0, len(next(iter(streams.values()))), 4)
    batches = [batch(**{name: one(keys[start : start + 4]) for name, keys in streams.items()}) for start in starts]
    report = trace_batches(batches, schema, tables, Tracing(window=3))
    return report, ElementTree.fromstring(picture(report))


def points(line):
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


def texts(root):
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


KEYS = [1, 2, 3, 4, 1, 5, 6, 1, 2, 7, 8, 1, 2, 3, 9, 10] * 3


def test_every_table_has_a_line_for_each_policy_from_left_to_right_and_upward():
    report, root = drawn(item=KEYS, user=KEYS[::-1])
    lines = list(root.iter(f"{SVG}polyline"))
    assert [line.get("class") for line in lines] == ["line lru", "line lfu", "line window"] * 2
    for line in lines:
        places = points(line)
        assert len(places) == len(report.tables[0].sizes)
        assert places == sorted(places, key=lambda place: (place[0], -place[1]))


def test_a_whole_table_stands_at_the_top_right_and_sizes_on_a_logarithmic_axis():
    report, root = drawn(item=KEYS)
    places = points(next(root.iter(f"{SVG}polyline")))
    assert places[-1] == (330 - 14, 44)
    by_size = dict(zip(report.tables[0].sizes, places, strict=True))
    assert by_size[2][0] - by_size[1][0] == pytest.approx(by_size[4][0] - by_size[2][0], abs=0.2)


def test_names_policies_and_axes_are_written_out():
    _, root = drawn(item=KEYS)
    assert {"item", "10 rows of 192 B", "LRU", "LFU", "window 3", "advised", "100 %", "0 %", "1 kB"} <= set(texts(root))


def test_a_name_may_hold_what_xml_gives_a_meaning():
    name = "<a&b>"
    schema = Schema(label="click", features=[Categorical(name)])
    batches = [batch(**{name: one([1, 2])}), batch(**{name: one([1, 2])})]
    report = trace_batches(batches, schema, [TracedTable(name=name, row_bytes=4, index_bytes=24)])
    assert name in texts(ElementTree.fromstring(picture(report)))


def test_a_table_without_reuse_says_so():
    _, root = drawn(item=list(range(16)), user=KEYS[:16])
    assert "no row is used in two batches" in texts(root)
    assert len(list(root.iter(f"{SVG}polyline"))) == 3


def test_every_panel_lies_within_the_picture():
    streams = {f"t{n}": KEYS for n in range(7)}
    _, root = drawn(**streams)
    width, height = float(root.get("width")), float(root.get("height"))
    moved = [group.get("transform")[10:-1].split() for group in root.iter(f"{SVG}g")]
    assert len({tuple(place) for place in moved}) == 7
    assert all(float(x) + 330 <= width and float(y) + 236 <= height for x, y in moved)
