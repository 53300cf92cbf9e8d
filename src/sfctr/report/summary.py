"""The top of a run's page: what to know of it before anything else, in a few numbers and sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sfctr.train.log import Line
from sfctr.train.stages import NAMES, STAGES_AHEAD, parts_of_step

from . import words
from .findings import (
    TIERS,
    Use,
    best_line,
    bound_of,
    busiest_use,
    rows_per_second,
    rows_per_second_of_steps,
    rows_trained,
    state_of,
    step_seconds,
    unseen_of,
    uses_of,
    wall_seconds,
    watched,
    worst_use,
)
from .html import Html, joined, paragraph, strong, text
from .record import Record, number

_MOST_BESIDE = 0.75
"""Share of the wall time: where steps take less, what took the rest is said."""


def head(record: Record) -> Html:
    """The title, and what the run is."""
    run, begun = record.run, record.begun
    facts = [] if run is None else [f"model {run.model.name}", f"batches of {run.train.batch_size:,} rows"]
    if begun:
        processes = begun.get("processes", 1)
        facts += ["1 process" if processes == 1 else f"{processes} processes"]
        facts += [f"began {str(begun.get('at', '')).replace('T', ' ').replace('+00:00', ' UTC')}"]
    facts.append(state_of(record))
    return Html(f"<header>\n<h1>Run {text(record.name)}</h1>\n{paragraph('; '.join(facts), kind='sub')}\n</header>")


def numbers(record: Record) -> Iterator[tuple[str, str, str]]:
    """What counts most, each with what to know about it."""
    last, best = record.valid[-1] if record.valid else {}, best_line(record)
    if best:
        what = "" if watched(record) == "auc" else f" (best by {watched(record)})"
        yield "AUC, best evaluation", _auc(best), f"at step {best['step']:,}{what}"
    if last:
        yield "AUC, last evaluation", _auc(last), f"at step {last['step']:,}"
    if not record.valid:
        yield "AUC", words.DASH, "nothing was held out to measure it on"
    yield "Rows trained", words.short(rows_trained(record)), f"{rows_trained(record):,} in {_steps(record)}"
    yield "Wall time", words.duration(wall_seconds(record)), "from the first step to the end"
    rate, of_steps = rows_per_second(record), rows_per_second_of_steps(record)
    about = "evaluations included" if of_steps is None else f"{words.short(of_steps)} while steps ran"
    yield "Rows a second", words.short(rate), about


def _auc(line: Line) -> str:
    auc = number(line.get("auc"))
    return "undefined" if auc is None else words.metric(auc)


def _steps(record: Record) -> str:
    steps = max((line.get("step", 0) for line in (*record.lines, record.ended)), default=0)
    epochs = record.last.get("epoch", 0)
    return words.plural(steps, "step") + (f", {words.plural(epochs, 'epoch')}" if epochs else "")


def statements_of(record: Record) -> Iterator[tuple[str, object]]:
    """What to take away, in sentences."""
    yield "What bound the run", bound_in_words(record)
    if 0 < step_seconds(record) < _MOST_BESIDE * (wall_seconds(record) or 0.0):
        yield "Beside its steps", beside_in_words(record)
    yield "Worst tier", worst_in_words(record)
    if told := _memory_in_words(record):
        yield "Memory", told
    feature, rate = next(iter(unseen_of(record).items()), ("", 0.0))
    if rate > 0:
        yield (
            "Unseen keys",
            f"most in feature {feature}: {words.share(rate)} of its keys at the last evaluation had no row",
        )


def bound_in_words(record: Record) -> Html:
    """What bound the run, and what to do about it."""
    found = bound_of(record)
    if found is None:
        return text("not known: its lines have no times of stages")
    share = words.share(found.share, 0) if found.share <= 1 else "longer than the steps"
    waited = record.stage_s["wait"] / step_seconds(record)
    remedy = f". To make it faster, {found.remedy}."
    if found.part not in STAGES_AHEAD or waited == 0:
        return joined(strong(found.what), f", {share} of the time of its steps", remedy)
    why = (
        f". Training waited {words.share(waited, 0)} of the time of its steps for the next batch, and of what makes"
        f" batches ready this took longest, {share}"
    )
    return joined(
        strong(found.what), why, remedy, f" Of training's own work, {_longest_in_words(record)} took longest."
    )


def _longest_in_words(record: Record) -> str:
    """The longest part of training's own thread but for waiting."""
    parts = parts_of_step(record.stage_s)
    longest = max(parts, key=lambda name: parts[name])
    return f"{NAMES[longest]} ({words.share(parts[longest] / step_seconds(record), 0)})"


def beside_in_words(record: Record) -> str:
    """What was done when no step ran."""
    whole, steps = wall_seconds(record) or 0.0, step_seconds(record)
    told = f"Of {words.duration(whole)} in all, {words.duration(whole - steps)} went into other things than steps"
    names = {"evaluate": "evaluating", "save": "saving models"}
    names |= {"checkpoint": "pauses and waits for checkpoints", "delta": "writing deltas"}
    known = {what: record.beside_s[name] for name, what in names.items()}
    parts = [f"{what} {words.duration(seconds)}" for what, seconds in known.items() if seconds > 0]
    return f"{told}: {', '.join(parts)}." if parts else f"{told}."


def worst_in_words(record: Record) -> object:
    """Which tier of which table has the lowest hit rate, and where most rows moved."""
    uses = uses_of(record.moved)
    if not record.moved:
        return "not known: the lines of this run do not say what moved, or it has no tables with tiers."
    worst, busiest = worst_use(uses), busiest_use(uses)
    if worst is None:
        return "none: every row that a batch asked for again was in the fastest tier."
    told: list[object] = [
        strong(f"{TIERS[worst.tier]} of table {worst.table}"),
        f": {words.share(worst.rate)} of the rows asked for were there, the lowest hit rate. ",
    ]
    if busiest is not None and (busiest.tier, busiest.table) != (worst.tier, worst.table):
        told += ["Most rows moved: ", strong(f"{TIERS[busiest.tier]} of table {busiest.table}"), ", "]
    else:
        told += ["Most rows moved there, too: " if busiest is not None else ""]
    told += [_moves_in_words(busiest)] if busiest is not None else []
    return joined(*told)


def _moves_in_words(use: Use) -> str:
    came, left = ("read from disk", "written there") if use.tier == "ram" else ("lifted from RAM", "lowered to it")
    return f"{words.short(use.came)} {came} and {words.short(use.left)} {left} ({words.size(use.num_bytes)})."


def whole_of(record: Record) -> str:
    """What has the memory that is not the tiers' alone."""
    several = record.begun.get("processes", 1) > 1
    return "all processes together" if several else "the whole process"


def _memory_in_words(record: Record) -> str:
    taken, bounds = record.held.get("bytes", {}), record.held.get("bounds", {})
    parts = [
        f"{name} {words.size(taken[tier])}" + (f" of {words.size(bounds[tier])}" if tier in bounds else "")
        for tier, name in TIERS.items()
        if taken.get(tier)
    ]
    peak = record.held.get("process", {}).get("peak_bytes")
    return "; ".join([*parts, *([f"{whole_of(record)} at most {words.size(peak)}"] if peak else [])])
