"""Numbers and tables as a person writes and reads them."""

import pytest

from sfctr.cli.text import parse_count, table_text
from sfctr.spec.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [("7", 7), ("250000", 250_000), ("250_000", 250_000), ("10M", 10_000_000), ("1.5k", 1500), ("2B", 2 * 10**9)],
)
def test_a_count_may_have_a_suffix(text, count):
    assert parse_count(text, "--rows") == count


@pytest.mark.parametrize("text", ["", "0", "-5", "ten", "1.5", "1.0005k", "10MB", "1e6", "0.2"])
def test_what_is_no_whole_number_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match=r"--rows is '.*'; write a whole number of at least 1, such as .* 10M"):
        parse_count(text, "--rows")


def test_a_tables_numbers_stand_to_the_right():
    rows = [("table", "rows", "auc"), ("item", 1_234_567, 0.5), ("a long name", 3, 0.25)]
    assert table_text(rows).splitlines() == [
        "table        rows       auc",
        "item         1,234,567  0.50000",
        "a long name          3  0.25000",
    ]
