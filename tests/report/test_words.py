"""Numbers as a person reads them."""

import pytest

from sfctr.report import words


def test_what_is_not_known_is_a_dash():
    assert [words.size(None), words.short(None), words.size(2.5e9), words.short(2000)] == ["–", "–", "2.5 GB", "2.0 k"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0 %"), (1, "100.0 %"), (0.61345, "61.3 %"), (0.99999, "> 99.9 %"), (1e-9, "< 0.1 %"), (None, "–")],
)
def test_a_share_reads_as_all_or_nothing_only_where_it_is(value, text):
    assert words.share(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "4.0 ms"),
        (9.96, "10.0 s"),
        (61, "1 min 1 s"),
        (3599.6, "1 h 0 min"),
        (7 * 3600 + 90, "7 h 2 min"),
        (None, "–"),
    ],
)
def test_durations_have_the_units_of_their_size(seconds, text):
    assert words.duration(seconds) == text


def test_one_has_no_plural():
    assert [words.plural(number, "step") for number in (0, 1, 1200)] == ["0 steps", "1 step", "1,200 steps"]
