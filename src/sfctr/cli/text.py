"""Numbers and tables as a person writes and reads them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sfctr.spec.errors import ConfigError

_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def parse_count(text: str, what: str) -> int:
    """The whole number that "10M", "1.5k" or "250000" stands for; `what` names it in the ConfigError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", text.strip().lower().replace("_", "").replace(",", ""))
    count = float(found[1]) * _MULTIPLES[found[2]] if found else 0.0
    if count < 1 or not count.is_integer():
        raise ConfigError(f"{what} is {text!r}; write a whole number of at least 1, such as 250000, 500K, 10M or 1.5B")
    return int(count)


def number_text(value: object) -> str:
    """A metric to five places, a count with thousands separated, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.5f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table_text(rows: Sequence[Sequence[object]]) -> str:
    """Rows of equal length as aligned columns, numbers to the right."""
    texts = [[number_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row, line in zip(rows, texts, strict=True):
        cells = zip(row, line, widths, strict=True)
        aligned = [text.rjust(w) if isinstance(cell, int | float) else text.ljust(w) for cell, text, w in cells]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)
