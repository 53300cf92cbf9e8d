"""Pictures have the points of the lines, and are drawn as a part of a page."""

import math
import re
import sys
import xml.etree.ElementTree as ET

import matplotlib
import pytest
from made_runs import hard_run, make_run, train_line, valid_line

from sfctr.report import pictures
from sfctr.report.drawing import MOST_POINTS, draw, thinned, tick
from sfctr.report.pictures import Picture, Series
from sfctr.report.record import read_record


@pytest.fixture
def record(tmp_path):
    return read_record(make_run(tmp_path / "run"))


def points(found: list[Picture], title: str) -> dict[str, list[tuple[float, float]]]:
    (picture,) = (each for each in found if each.title == title)
    return {series.label: list(zip(series.xs, series.ys, strict=True)) for series in picture.series}


def test_training_and_validation_lie_over_the_rows_trained(record):
    assert points(pictures.quality(record), "AUC") == {
        "training": [(1000, 0.6), (2000, 0.7)],
        "validation": [(1000, 0.75), (2000, 0.74)],
    }


def test_a_number_that_is_none_leaves_a_gap(tmp_path):
    lines = [train_line(10), valid_line(10, None, best=False), train_line(20), valid_line(20, 0.7, best=True)]
    found = points(pictures.quality(read_record(make_run(tmp_path / "run", lines))), "AUC")["validation"]
    assert math.isnan(found[0][1]) and found[1] == (2000, 0.7)


def test_what_nothing_is_known_of_has_no_picture(tmp_path):
    bare = {"kind": "train", "step": 10, "epoch": 1, "rows": 1000, "loss": 0.5}
    record = read_record(make_run(tmp_path / "run", [bare], history=()))
    assert [picture.title for picture in pictures.quality(record)] == ["Loss"]
    assert pictures.time(record) == pictures.tiers(record) == pictures.memory(record) == []


def test_a_step_is_stacked_by_its_parts(record):
    assert points(pictures.time(record), "Time of a step") == {
        "reading and updating rows": [(1000, 0.4), (2000, 0.4)],
        "the dense model": [(1000, 1.1), (2000, 1.1)],
        "metrics and the loop itself": [(1000, 0.1), (2000, 0.1)],
        "waiting for the batch": [(1000, 0.4), (2000, 0.4)],
    }
    assert points(pictures.time(record), "Rows a second") == {"rows a second": [(1000, 50.0), (2000, 50.0)]}


def test_hit_rates_and_moves_are_those_of_each_stretch(record):
    found = pictures.tiers(record)
    assert points(found, "Hit rate: RAM") == {
        "all tables": [(1000, 990 / 1200), (2000, 990 / 1200)],
        "item": [(1000, 0.75), (2000, 0.75)],
        "user": [(1000, 0.975), (2000, 0.975)],
    }
    assert points(found, "Rows moved: RAM") == {
        "read from disk": [(1000, 0.21), (2000, 0.21)],
        "written to disk": [(1000, 0.1), (2000, 0.1)],
    }


def test_memory_is_shown_against_its_bound(record):
    found = {picture.title: picture for picture in pictures.memory(record)}
    assert list(found) == ["Memory: RAM", "Memory: disk", "Rows held"]
    assert found["Memory: RAM"].levels == {"budget": 2_000_000.0}
    assert points(list(found.values()), "Rows held")["item"] == [(1000, 200), (2000, 400)]


def test_many_points_are_averaged_and_the_ends_stay():
    count = 3 * MOST_POINTS
    long = Series("a", [float(x) for x in range(count)], [math.nan, *(1.0 for _ in range(count - 1))])
    found = thinned(long)
    assert len(found.xs) == MOST_POINTS
    assert (found.xs[0], found.xs[-1]) == (1.0, count - 2.0)
    assert set(found.ys) == {1.0}
    assert thinned(Series("b", [1.0, 2.0], [3.0, 4.0])).ys == [3.0, 4.0]


def test_a_drawing_has_no_colour_of_its_own_and_nothing_of_a_file(record):
    for picture in [*pictures.quality(record), *pictures.time(record), *pictures.memory(record)]:
        svg = draw(picture)
        ET.fromstring(svg.replace("xlink:href", "href"))
        assert not re.search(r"#[0-9a-f]{3,8}\b(?!\))", re.sub(r'(?:href="|id="|url\()[^")]*', "", svg)), picture.title
        assert not re.search(r"<style|<\?xml|<!DOCTYPE|<metadata|font-family", svg)
        assert set(re.findall(r"var\((--[a-z0-9]+)\)", svg)) >= {"--c0", "--grid", "--muted"}


def test_the_same_picture_is_the_same_text(record):
    (picture, *_) = pictures.quality(record)
    assert draw(picture) == draw(picture)


def test_a_users_settings_of_matplotlib_change_nothing_and_stay(record):
    (picture, *_) = pictures.quality(record)
    plain = draw(picture)
    with matplotlib.rc_context({"text.usetex": True, "font.size": 20, "lines.markersize": 9, "xtick.major.pad": 20}):
        assert draw(picture) == plain
        assert matplotlib.rcParams["text.usetex"] and matplotlib.rcParams["xtick.major.pad"] == 20


def test_lines_differ_by_their_dashes_too(record):
    (picture, *_) = pictures.quality(record)
    dashes = re.findall(r"stroke-dasharray: ([^;]*);[^\"]*stroke: var\(--c1\)", draw(picture))
    assert dashes and dashes[0] != "none"


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("ys", [[0.0], [0.5], [math.nan, 2.0], [1e-9, 1e12], [-1.0, -1.0]])
def test_any_points_can_be_drawn(stacked, ys):
    xs = [float(x) for x in range(1, len(ys) + 1)]
    svg = draw(Picture(title="any", series=[Series("a", xs, ys), Series("b", xs, ys, 13)], stacked=stacked))
    assert svg.startswith("<svg ") and svg.endswith("</svg>")
    assert "nan" not in svg


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0.0, "bytes", "0"),
        (2e9, "bytes", "2 GB"),
        (2.5e6, "count", "2.5 M"),
        (0.755, "share", "75.5 %"),
        (0.25, "seconds", "250 ms"),
        (90.0, "seconds", "90 s"),
        (0.76543, "number", "0.76543"),
    ],
)
def test_ticks_read_as_their_unit(value, scale, text):
    assert tick(value, scale) == text


def test_drawing_leaves_matplotlibs_settings_and_chooses_no_backend():
    had_pyplot = "matplotlib.pyplot" in sys.modules
    with matplotlib.rc_context({"font.size": 11.5, "svg.hashsalt": "other"}):
        before = dict(dict.items(matplotlib.rcParams))  # to ask for its backend would choose one
        draw(Picture(title="any", series=[Series("a", [1.0], [2.0])]))
        assert dict(dict.items(matplotlib.rcParams)) == before
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_hard_names_are_in_no_drawing(tmp_path):
    record = read_record(hard_run(tmp_path / "run"))
    for picture in [*pictures.quality(record), *pictures.tiers(record)]:
        svg = draw(picture)
        assert "script" not in svg and "table_of" not in svg and "x^2" not in svg
