"""Options of tables that decide who has a row: what they mean and what does not fit together."""

import pytest

from sfctr.spec.errors import ConfigError
from sfctr.spec.optim import SGD
from sfctr.spec.tables import Normal, Table, Uniform, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604800), ("2w", 1209600), ("12h", 43200), ("90m", 5400), ("1.5h", 5400), ("1s", 1)]
)
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    assert parse_duration(text, "x") == seconds * 10**9


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-1d", "0h", "nan", "nand", "infd", "1000000d"])
def test_other_durations_are_refused(text):
    with pytest.raises(ConfigError, match=rf"table 'a': expire_after is '{text}'; write a duration such as"):
        Table("a", expire_after=text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0}, "capacity is 0 and must be 1 to"),
        ({"admit_after": 0}, "admit_after is 0 and must be 1 to"),
        ({"expire_after_steps": 2**31}, "expire_after_steps is 2147483648 and must be 1 to"),
        ({"expire_after_steps": 1, "expire_after": "1d"}, "both given; keep one of them"),
        ({"unseen": "rare"}, "unseen = 'rare' needs admit_after of 2 or more"),
        ({"dense": True, "num_rows": 3, "capacity": 2}, "rows of a dense table stay as they are; take away capacity"),
        ({"pretrained": "x", "frozen": True, "expire_after": "1d"}, "rows of a frozen table stay .* take away expire"),
        ({"buckets": 5, "admit_after": 2}, "buckets bound its rows already; take away admit_after, or buckets"),
        ({"buckets": 5, "capacity": 2}, "buckets bound its rows already; take away capacity, or buckets"),
    ],
)
def test_options_at_odds_are_refused(options, words):
    with pytest.raises(ConfigError, match=rf"table 'a': .*{words}"):
        Table("a", **options)


def test_a_table_says_whether_its_keys_come_and_go():
    assert not Table("a").has_membership
    for options in ({"capacity": 1}, {"admit_after": 2}, {"expire_after_steps": 1}, {"expire_after": "1d"}):
        assert Table("a", **options).has_membership
    assert Table("a", buckets=5, expire_after="1d").expire_after_ns == 86400 * 10**9


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table("a", dense=True, num_rows=2, l2=-5.0),
        lambda: Table("a", dense=True, num_rows=2, linear=SGD(), linear_l2=float("nan")),
        lambda: Normal(mean=float("nan")),
        lambda: Uniform(low=-float("inf"), high=0.0),
        lambda: Uniform(low=0.0, high=float("nan")),
    ],
)
def test_numbers_that_mean_nothing_are_refused(make):
    with pytest.raises(ConfigError, match="must"):
        make()
