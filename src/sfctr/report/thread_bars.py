"""Where a run's time went, as a bar for each of its threads. Pure: a record in, HTML out."""

from __future__ import annotations

from collections.abc import Mapping

from sfctr.train.stages import NAMES

from . import words
from .drawing import colour
from .findings import threads_of
from .html import Html, box, class_of, text
from .pictures import COLOURS
from .record import Record

_LEAST_SHOWN = 0.12
"""Share of the longest bar from which on a part has its name in it."""


def thread_bars(record: Record, bound: str | None) -> Html:
    """A bar for each thread: its parts over the seconds of all steps; what bound the run is outlined."""
    threads = threads_of(record)
    if not threads:
        return Html()
    longest = max(sum(parts.values()) for parts in threads.values())
    lines = [_thread_bar(thread, parts, longest, bound) for thread, parts in threads.items()]
    return Html(f'<div class="threads">{"".join(lines)}</div>')


def _thread_bar(thread: str, parts: Mapping[str, float], longest: float, bound: str | None) -> str:
    total = sum(parts.values())
    segments, legend = [], []
    for name, seconds in parts.items():
        width, style = 100 * seconds / longest, COLOURS[name]
        is_bound = name == bound
        label = NAMES[name] if seconds / longest >= _LEAST_SHOWN else ""
        segments.append(
            f'<span{class_of("bound" if is_bound else "")} style="width:{width:.2f}%;background:var({colour(style)})"'
            f' title="{text(NAMES[name])}">{text(label)}</span>'
        )
        told = f"{text(NAMES[name])} <b>{text(words.duration(seconds))}</b>" + (" ◂ bound the run" if is_bound else "")
        legend.append(f"<li{class_of('bound' if is_bound else '')}>{box(style)}<span>{told}</span></li>")
    return (
        f'<div class="thread"><div class="name">{text(thread)} <b>{text(words.duration(total))}</b></div>'
        f'<div class="bar">{"".join(segments)}</div><ul class="legend">{"".join(legend)}</ul></div>'
    )
