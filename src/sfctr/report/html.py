"""The pieces of a page, as HTML text: everything that is not markup of ours is escaped here and nowhere else.

A page is one file: it has no script, and nothing outside it is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from .drawing import colour, dash, draw, tick
from .pictures import Picture

_STYLE = Path(__file__).with_name("style.css")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Escaped, unless it is markup already."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def page(title: str, parts: Iterable[Html]) -> str:
    style, body = _STYLE.read_text(encoding="utf-8"), "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<style>\n{style}</style>\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, parts: Iterable[Html]) -> Html:
    """A part of the page; nothing where there is nothing in it."""
    inner = "\n".join(part for part in parts if part)
    return Html(f"<section>\n<h2>{text(heading)}</h2>\n{inner}\n</section>") if inner else Html()


def paragraph(*pieces: object, kind: str = "") -> Html:
    return Html(f"<p{class_of(kind)}>{joined(*pieces)}</p>")


def joined(*pieces: object) -> Html:
    return Html("".join(map(text, pieces)))


def strong(value: object) -> Html:
    return Html(f"<strong>{text(value)}</strong>")


def items(values: Iterable[object]) -> Html:
    inner = "".join(f"<li>{text(value)}</li>" for value in values)
    return Html(f"<ul>{inner}</ul>") if inner else Html()


def tiles(entries: Iterable[tuple[str, str, str]]) -> Html:
    """The numbers that count most: (what, value, what to know about it)."""
    each = (
        f'<div class="tile"><div class="what">{text(what)}</div><div class="value">{text(value)}</div>'
        f'<div class="about">{text(about)}</div></div>'
        for what, value, about in entries
    )
    return Html(f'<div class="tiles">{"".join(each)}</div>')


def statements(entries: Iterable[tuple[str, object]]) -> Html:
    """(what, a sentence about it)."""
    each = (f"<dt>{text(what)}</dt><dd>{text(told)}</dd>" for what, told in entries)
    return Html(f'<dl class="statements">{"".join(each)}</dl>')


def table(heading: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "", kind: str = "") -> Html:
    """The first column names the row; the others are numbers, to the right. Scrolls by itself where it is too wide."""
    lines = [f"<tr>{''.join(_cell(value, place) for place, value in enumerate(row))}</tr>" for row in rows]
    if not lines:
        return Html()
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heading)
    told = f'<p class="note">{text(note)}</p>' if note else ""
    return Html(
        f'<div class="wide" tabindex="0"><table{class_of(kind)}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{told}"
    )


def _cell(value: object, place: int) -> str:
    return f'<th scope="row">{text(value)}</th>' if place == 0 else f"<td>{text(value)}</td>"


def bar(part: float | None, label: str) -> Html:
    """A number with a bar beside it, of a share from 0 to 1."""
    width = 100 * min(1.0, max(0.0, part or 0.0))
    return Html(
        f'<span class="meter"><span style="width:{width:.1f}%"></span></span><span class="told">{text(label)}</span>'
    )


def folded(summary: str, inner: Html) -> Html:
    if not inner:
        return Html()
    return Html(f"<details><summary>{text(summary)}</summary>\n{inner}\n</details>")


def code(value: str) -> Html:
    return Html(f"<pre>{text(value)}</pre>")


def figures(pictures: Sequence[Picture]) -> Html:
    each = "\n".join(_figure(picture) for picture in pictures)
    return Html(f'<div class="figures">\n{each}\n</div>') if each else Html()


def _figure(picture: Picture) -> str:
    note = f'<p class="note">{text(picture.note)}</p>' if picture.note else ""
    caption = f"<figcaption>{text(picture.title)}</figcaption>"
    return f"<figure>\n{caption}\n{draw(picture)}\n{_legend(picture)}{note}\n</figure>"


def _legend(picture: Picture) -> str:
    """The series by their names, with the last value of each; a stack from its top to its bottom."""
    entries = []
    for series in reversed(picture.series) if picture.stacked else picture.series:
        swatch = box(series.style) if picture.stacked else _stroke(series.style)
        last = "" if series.last is None else f" <b>{text(tick(series.last, picture.scale))}</b>"
        entries.append(f"<li>{swatch}<span>{text(series.label)}{last}</span></li>")
    for label, value in (picture.levels or {}).items():
        line = '<svg class="swatch" viewBox="0 0 24 8"><path d="M0 4H24" class="level"/></svg>'
        entries.append(f"<li>{line}<span>{text(label)} <b>{text(tick(value, picture.scale))}</b></span></li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _stroke(style: int) -> str:
    line = f'<path d="M0 4H24" style="stroke:var({colour(style)});stroke-dasharray:{dash(style) or "none"}"/>'
    return f'<svg class="swatch" viewBox="0 0 24 8">{line}</svg>'


def box(style: int) -> str:
    """A patch of a series' colour."""
    return f'<span class="box" style="background:var({colour(style)})"></span>'


def class_of(name: str) -> str:
    return f' class="{name}"' if name else ""
