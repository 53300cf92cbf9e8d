"""Draws a picture as SVG that is a part of a page: its colours are the page's variables, its text the page's font.

matplotlib does the work, through its objects alone: no backend is chosen, settings of the user (matplotlibrc, styles)
change nothing, and all are as before afterwards.
Nothing that a user named is drawn (names are in the legend, which is HTML), so no text is taken for markup and no glyph
is missing. The same picture gives the same text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import words
from .pictures import Picture, Scale, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 302.4, 183.6
"""Of a picture, points: 420 px wide; a phone shows it a little smaller."""
MOST_POINTS = 300
"""Of a line; more are averaged in their order."""
_LETTER = 4.7
"""Points that a letter beside an axis is wide."""
FEW_POINTS = 24
"""A line of at most so many has marks."""
NUM_COLOURS = 12
"""--c0 ... of the page."""
DASHES = ("", "6 2", "2 1.5", "6 2 1.5 2", "9 2", "1 2")
"""Of lines, after their style; the legend has the same."""

# Colours that stand for the page's variables until the SVG is written: no picture has any others.
_SLOT = "#0a0b%02x"
_INK, _GRID, _PAPER = (_SLOT % number for number in (200, 201, 202))
_NAMES = {200: "--muted", 201: "--grid", 202: "--paper"}
_SETTINGS: dict[Any, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sfctr",
    "path.simplify": True,
    "font.size": 8.0,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
}


def colour(style: int) -> str:
    """The page's variable of a series' colour."""
    return f"--c{style % NUM_COLOURS}"


def dash(style: int) -> str:
    """The dashes of a series' line, as SVG has them; "": none."""
    return DASHES[style % len(DASHES)]


def draw(picture: Picture) -> str:
    """An `<svg>` element."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    defaults = {name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")}
    with mpl.rc_context({**defaults, **_SETTINGS}):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        (_draw_stack if picture.stacked else _draw_lines)(axes, [thinned(each) for each in picture.series])
        _draw_levels(axes, picture)
        _set_limits(axes, picture)
        _plain_style(axes, picture)
        _leave_room(axes)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return _for_a_page(file.getvalue(), f"{picture.title} over {picture.x}")


def thinned(series: Series) -> Series:
    """At most MOST_POINTS points: means of as many neighbours as needed; unknown ones count for nothing."""
    step = math.ceil(len(series.xs) / MOST_POINTS)
    if step <= 1:
        return series
    starts = range(0, len(series.xs), step)
    xs, ys = ([_mean(values[at : at + step]) for at in starts] for values in (series.xs, series.ys))
    return Series(series.label, xs, ys, series.style)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _draw_lines(axes: Axes, series: Sequence[Series]) -> None:
    for each in reversed(series):  # the first lies above the others
        dashes = [float(length) for length in dash(each.style).split()]
        axes.plot(
            each.xs,
            each.ys,
            color=_SLOT % (each.style % NUM_COLOURS),
            linewidth=1.5,
            linestyle=(0, dashes) if dashes else "-",
            marker="o" if len(each.xs) <= FEW_POINTS else "",
            markersize=3.2,
        )


def _draw_stack(axes: Axes, series: Sequence[Series]) -> None:
    xs = [0.0, *series[0].xs]  # the first stretch begins at the first row
    layers = [[0.0 if math.isnan(y) else y for y in (each.ys[0], *each.ys)] for each in series]
    colours = [_SLOT % (each.style % NUM_COLOURS) for each in series]
    axes.stackplot(xs, layers, colors=colours, edgecolor=_PAPER, linewidth=0.6)


def _draw_levels(axes: Axes, picture: Picture) -> None:
    for value in (picture.levels or {}).values():
        axes.axhline(value, color=_INK, linewidth=1, linestyle=(0, (1.5, 1.5)))


def _set_limits(axes: Axes, picture: Picture) -> None:
    last = max(x for series in picture.series for x in series.xs)
    axes.set_xlim(0, (1.0 if picture.stacked else 1.02) * last or 1)
    low, high = axes.get_ylim()
    if picture.scale == "share":
        axes.set_ylim(-0.03, 1.03)
    elif picture.from_zero or picture.stacked:
        axes.set_ylim(0, 1.03 * high if high > 0 else 1)
    elif high - low < 1e-12:
        axes.set_ylim(low - 0.05, high + 0.05)


def _plain_style(axes: Axes, picture: Picture) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=2, width=0.6, color=_GRID)
    axes.set_xlabel(picture.x, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for axis, scale in ((axes.xaxis, picture.x_scale), (axes.yaxis, picture.scale)):
        if scale != "number":
            axis.set_major_formatter(FuncFormatter(lambda value, place, of=scale: tick(value, of)))


def _leave_room(axes: Axes) -> None:
    """For the labels beside the axes, by how long they are: a layout engine would draw all of it twice."""
    low, high = axes.get_ylim()
    shown = [value for value in axes.yaxis.get_majorticklocs() if low <= value <= high]
    longest = max(map(len, axes.yaxis.get_major_formatter().format_ticks(shown)), default=1)
    left, bottom, right, top = 8 + _LETTER * longest, 30.0, 10.0, 6.0
    axes.set_position((left / WIDTH, bottom / HEIGHT, (WIDTH - left - right) / WIDTH, (HEIGHT - bottom - top) / HEIGHT))


def tick(value: float, scale: Scale) -> str:
    """A number beside an axis or in a legend."""
    if value == 0:
        return "0"
    if scale == "share":
        return f"{100 * value:.4g} %"
    if scale == "seconds":
        return f"{1000 * value:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"
    if scale == "number":
        return f"{value:.5g}"
    text = words.size(value) if scale == "bytes" else words.short(value)
    return text.replace(".0 ", " ") if "." in text else text


def _for_a_page(svg: str, label: str) -> str:
    """Without what belongs to a file of its own, with the page's variables for colours, and with no id that nothing
    refers to: those that remain are made of what they stand for, so that equal ones on a page are the same."""
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{label}">', svg, count=1
    )
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    svg = re.sub(r"#0a0b([0-9a-f]{2})", lambda found: f"var({_variable(int(found[1], 16))})", svg)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    return re.sub(r"\s*\n\s*", "\n", svg).replace("<defs/>\n", "").replace("<defs>\n</defs>\n", "")


def _variable(number: int) -> str:
    return _NAMES.get(number, f"--c{number}")
