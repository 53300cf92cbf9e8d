"""Sizes and counts as a person reads them. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def size_text(num_bytes: float) -> str:
    """As in "2.1 GB" or "640 MB", in powers of 1000."""
    return scaled_text(num_bytes, (" B", " kB", " MB", " GB", " TB", " PB"))


def scaled_text(value: float, units: Sequence[str]) -> str:
    """In the largest unit that it is one of at least, each a thousand of the one before; with tenths below 100."""
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    text = f"{value:.0f}" if power == 0 or abs(value) >= 99.5 else f"{value:.1f}"
    return text + units[power]
