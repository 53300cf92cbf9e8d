"""A trace as one SVG: hit rate over bytes of cached rows, a panel for each table, a line for each policy.

The file needs nothing beside it and shows on light and dark pages: it paints no background, and its colours are of
middling lightness. Lines differ in their dashes too. Pure: a report in, a text out.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, floor, log10

from .report import Advice, Curve, TableTrace, TraceReport

_COLUMNS = 3
_WIDTH, _HEIGHT = 330, 236  # of a panel with its margins, px
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 44, 40
_LEGEND = 44
_STYLE = """
text { font: 11px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #7d8590 }
.name { font-size: 13px; font-weight: 600 }
.title { font-size: 15px; font-weight: 600 }
.grid { stroke: #7d8590; stroke-opacity: .25 }
.axis { stroke: #7d8590; fill: none }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
.lru { stroke: #d9822b; stroke-dasharray: 6 3 }
.lfu { stroke: #c2649a; stroke-dasharray: 2 3 }
.window { stroke: #1f8ecb }
.advice { fill: #1f8ecb; stroke: none }
.least { stroke: #7d8590; stroke-dasharray: 1 3; stroke-width: 2 }
"""


def picture(report: TraceReport) -> str:
    """The SVG text. Tables whose rows are never used again have a panel that says so."""
    columns = min(_COLUMNS, len(report.tables))
    rows = ceil(len(report.tables) / columns)
    width, height = max(columns * _WIDTH, 2 * _WIDTH), _LEGEND + rows * _HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' role="img" aria-label="Hit rate over bytes of cached rows, by table and policy">',
        f"<style>{_STYLE}</style>",
        *_legend(report),
    ]
    for place, table in enumerate(report.tables):
        x, y = place % columns * _WIDTH, _LEGEND + place // columns * _HEIGHT
        lines += [f'<g transform="translate({x} {y})">', *_Panel(table).lines(), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend(report: TraceReport) -> Iterator[str]:
    yield f'<text class="title" x="{_LEFT}" y="20">Hit rate over bytes of cached rows</text>'
    curves = next((table.curves for table in report.tables if table.curves), ())
    x = _LEFT
    for curve in curves:
        yield f'<line class="line {curve.policy}" x1="{x}" x2="{x + 24}" y1="34" y2="34"/>'
        yield f'<text x="{x + 30}" y="38">{_label(curve)}</text>'
        x += 44 + 7 * len(_label(curve))
    if curves:
        yield f'<circle class="advice" cx="{x + 4}" cy="34" r="4"/><text x="{x + 14}" y="38">advised</text>'
        yield f'<line class="least" x1="{x + 72}" x2="{x + 72}" y1="27" y2="41"/>'
        yield f'<text x="{x + 80}" y="38">rows of a window</text>'


def _label(curve: Curve) -> str:
    return f"window {curve.window}" if curve.policy == "window" else curve.policy.upper()


class _Panel:
    """One table's axes and lines; x is the logarithm of bytes, y the hit rate from 0 to 1."""

    def __init__(self, table: TableTrace) -> None:
        self._table = table
        low = table.size_bytes[0] if table.size_bytes else 1
        high = table.size_bytes[-1] if table.size_bytes else 10
        self._low, self._high = log10(low), max(log10(high), log10(low) + 0.1)

    def lines(self) -> Iterator[str]:
        table = self._table
        yield f'<text class="name" x="{_LEFT}" y="18">{escape(table.name)}</text>'
        yield f'<text x="{_LEFT}" y="33">{table.rows:,} rows of {table.row_bytes:,} B</text>'
        yield from self._grid()
        yield f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>'
        if not table.curves:
            yield f'<text x="{_LEFT + 12}" y="{(_TOP + _HEIGHT - _BOTTOM) / 2:g}">no row is used in two batches</text>'
            return
        yield self._least()
        for curve in table.curves:
            yield self._line(curve)
        if table.advice is not None:
            yield self._advice(table.advice)

    def _grid(self) -> Iterator[str]:
        for percent in (0, 25, 50, 75, 100):
            y = self._y(percent / 100)
            yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:g}" y2="{y:g}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{percent} %</text>'
        for power in self._powers():
            x = self._x(10**power)
            yield f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            yield f'<text x="{x:g}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{_power_text(power)}</text>'

    def _powers(self) -> range:
        """Powers of ten of bytes within the axis, no more than there is room to name."""
        first, last = ceil(self._low), floor(self._high)
        return range(first, last + 1, ceil((last - first + 1) / 5) or 1)

    def _line(self, curve: Curve) -> str:
        points = [(self._x(s), self._y(r)) for s, r in zip(self._table.size_bytes, curve.hit_rates, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline class="line {curve.policy}" points="{path}"><title>{_label(curve)}</title></polyline>'

    def _least(self) -> str:
        """Where a cache can hold all rows of any window."""
        rows = self._table.window_rows.max
        x = self._x(max(rows, self._table.sizes[0]) * self._table.row_bytes)
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"'
        return f'<line class="least" {ends}><title>{rows:,} rows are used within a window</title></line>'

    def _advice(self, advice: Advice) -> str:
        x, y = self._x(advice.rows * self._table.row_bytes), self._y(advice.hit_rate)
        told = f"{advice.rows:,} rows: {advice.hit_rate:.1%} hits"
        return f'<circle class="advice" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{told}</title></circle>'

    def _x(self, num_bytes: float) -> float:
        share = (log10(num_bytes) - self._low) / (self._high - self._low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, hit_rate: float) -> float:
        return _HEIGHT - _BOTTOM - hit_rate * (_HEIGHT - _TOP - _BOTTOM)


def _power_text(power: int) -> str:
    """10 to this power bytes: "10 MB"."""
    return f"{10 ** (power % 3)} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power // 3]}"
