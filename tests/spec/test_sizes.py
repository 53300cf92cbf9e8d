"""Sizes as a person reads them."""

import pytest

from sfctr.spec.sizes import size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345, "12.3 kB"),
        (999_600, "1.0 MB"),
        (640_000_000, "640 MB"),
        (2.5e9, "2.5 GB"),
        (5 * 10**18, "5000 PB"),
    ],
)
def test_sizes_go_by_powers_of_1000(num_bytes, text):
    assert size_text(num_bytes) == text
