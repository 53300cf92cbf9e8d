"""Numbers as a person reads them. Pure functions; what is None reads as a dash."""

from __future__ import annotations

from sfctr.spec.sizes import scaled_text, size_text

DASH = "–"


def size(num_bytes: float | None) -> str:
    return DASH if num_bytes is None else size_text(num_bytes)


def short(value: float | None) -> str:
    """As in "1.2 M", for a count."""
    return DASH if value is None else scaled_text(value, ("", " k", " M", " G", " T", " P"))


def count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def share(value: float | None, places: int = 1) -> str:
    """As in "61.3 %". Less than all of it never reads as 100 %, nor more than nothing as 0 %."""
    if value is None:
        return DASH
    percent, least = 100 * value, 10**-places
    if 0 < percent < least / 2:
        return f"< {least:g} %"
    if 100 - least / 2 <= percent < 100:
        return f"> {100 - least:g} %"
    return f"{percent:.{places}f} %"


def metric(value: float | None) -> str:
    return DASH if value is None else f"{value:.5f}"


def duration(seconds: float | None) -> str:
    """As in "4.2 s", "3 min 5 s" or "2 h 10 min"."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.05 else f"{1000 * seconds:.1f} ms"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
