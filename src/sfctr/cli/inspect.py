"""`sfctr inspect`: what a run holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sfctr.spec.tables import Table

from .metrics import metrics_text
from .score import RUN, WHICH, Which
from .text import size_text, table_text

if TYPE_CHECKING:
    from sfctr.store import Store


def inspect(run: Annotated[Path, RUN], which: Annotated[Which, WHICH] = "best") -> None:
    """Show what a run holds.

    Its model, tables, rows and sizes, which keys have come and gone, and the metrics of the last evaluation before it
    was saved.
    """
    from sfctr.store import Store
    from sfctr.train.run import open_saved

    saved = open_saved(run, which)
    with Store(saved.run.tables) as store:
        saved.load_rows(store)
        print(table_text([("model", saved.run.model.name), ("from", str(saved.directory)), *_progress(saved.facts)]))
        print()
        heading = ("table", "rows", "dim", "optimizer", "first-order", "weights and state")
        print(table_text([heading, *(_table_line(table, store) for table in saved.run.tables)]))
        if membership := store.membership():
            print(f"\n{table_text(list(_membership_lines(membership)))}")
        print(f"\nrows and index in memory: {size_text(store.memory_bytes())}")
    if "evaluation" in saved.facts:
        print(f"\n{metrics_text(saved.facts['evaluation'])}")


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
