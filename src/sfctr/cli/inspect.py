"""`sfctr inspect`: what a run, or one of its checkpoints or deltas, holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sfctr.spec.sizes import size_text
from sfctr.spec.tables import Table

from .inspect_checkpoint import inspect_checkpoint, is_checkpoint
from .inspect_delta import inspect_delta, is_delta
from .metrics import metrics_text
from .score import RUN, WHICH, Which
from .text import table_text

if TYPE_CHECKING:
    from sfctr.store import Store


def inspect(run: Annotated[Path, RUN], which: Annotated[Which, WHICH] = "best") -> None:
    """Show what a run, or one of its checkpoints or deltas, holds.

    Its model, tables, rows and sizes, which keys have come and gone, what moved between RAM and disk and what bound the
    whole run, and the metrics of the last evaluation before the model was saved. Of a checkpoint, a directory such as
    RUN/checkpoints/step-000000000400, its rows and its files, each checked; of a delta, such as RUN/deltas/000001,
    what it follows and changes.
    """
    if is_checkpoint(run):
        inspect_checkpoint(run)
        return
    if is_delta(run):
        inspect_delta(run)
        return
    from sfctr.train.log import read_log
    from sfctr.train.run import open_saved, open_trained
    from sfctr.train.run_dir import METRICS_FILE

    saved = open_saved(run, which)
    with open_trained(saved.run, run) as store:
        saved.load_rows(store)
        print(table_text([("model", saved.run.model.name), ("from", str(saved.directory)), *_progress(saved.facts)]))
        print()
        heading = ("table", "rows", "dim", "optimizer", "first-order", "weights and state")
        print(table_text([heading, *(_table_line(table, store) for table in saved.run.tables)]))
        if membership := store.membership():
            print(f"\n{table_text(list(_membership_lines(membership)))}")
        print(f"\nrows and index in memory: {size_text(store.memory_bytes())}")
    lines = [line for line in read_log(run / METRICS_FILE) if line["kind"] == "train"]
    print("".join(f"\n{text}\n" for text in _movement(lines, saved.run.train.window)), end="")
    if "evaluation" in saved.facts:
        print(f"\n{metrics_text(saved.facts['evaluation'])}")


def _movement(lines: Sequence[Mapping[str, Any]], window: int) -> Iterator[str]:
    """Rows that moved while training, by table, and the stage that bound it, of the lines that say so."""
    from sfctr.train.stages import bound

    moved: dict[str, Counter[str]] = {}
    stage_s: Counter[str] = Counter()
    for line in lines:
        stage_s.update(line.get("stage_s", {}))
        for table, counts in line.get("moved", {}).items():
            moved.setdefault(table, Counter()).update(counts)
    if moved:
        heading = ("table", "asked for", "unique", "in RAM", "new", "from disk", "to disk")
        names = ("requested", "unique", "hits", "fresh", "fetched", "evicted")
        yield table_text([heading, *((table, *(counts[name] for name in names)) for table, counts in moved.items())])
    wire: Counter[str] = Counter()
    for line in lines:
        wire.update(line.get("wire", {}))
    if wire:
        saved = f"; rows position by position, without virtual ids: {size_text(wire['positions'])}"
        kinds = ((kind, size_text(count)) for kind, count in wire.items() if kind != "positions")
        yield table_text([("between processes", "bytes"), *kinds]) + saved
    sentence = bound(stage_s, window=window)
    if sentence is not None:
        yield f"what bound the run: {sentence}"


def _progress(facts: Any) -> Iterator[tuple[str, Any]]:
    return ((name, facts[name]) for name in ("step", "epoch", "rows") if name in facts)


def _membership_lines(membership: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str | int, ...]]:
    """Keys by table; docs/vocabulary.md says what the columns count."""
    names = tuple(next(iter(membership.values())))
    yield ("table", *names)
    for table, counts in membership.items():
        yield (table, *(counts[name] for name in names))


def _table_line(table: Table, store: Store) -> tuple[str, int, int, str, str, str]:
    rows = store.num_rows(table.name)
    block = next(store.rows(table.name, 1), None)
    floats = 0 if block is None else block.state.shape[1] + (block.linear is not None)
    size = rows * (floats * 4 + table.dim * (2 if table.dtype == "bf16" else 4))
    kind = "of the dense part" if table.dense else type(table.optimizer).__name__
    linear = "-" if table.linear is None else "as above" if table.dense else type(table.linear).__name__
    return table.name, rows, table.dim, kind, linear, size_text(size)
