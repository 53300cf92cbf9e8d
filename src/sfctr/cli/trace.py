"""`sfctr trace`: what the ids of a run's training data look like, and how much memory their rows need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile import RunFile
from sfctr.spec.tables import Table, parse_bytes
from sfctr.telemetry import notice

from .run_file import RUN_FILE, SET, read_run_file
from .text import parse_count
from .trace_text import trace_text

if TYPE_CHECKING:
    from sfctr.store import Store
    from sfctr.trace import TracedTable, TraceReport, Tracing


def trace(
    run_file: Annotated[Path, RUN_FILE],
    set_: Annotated[list[str], SET] = [],  # noqa: B006  typer copies it
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write; by default runs/<run file's name>/trace."),
    ] = None,
    max_rows: Annotated[
        str | None, typer.Option("--max-rows", metavar="N", help="Stop after so many rows, such as 500K or 10M.")
    ] = None,
    window: Annotated[int, typer.Option(help="Batches that the look-ahead cache knows in advance.", metavar="W")] = 4,
    memory: Annotated[
        str, typer.Option(help="Bound on what is kept; larger data are sampled by key.", metavar="SIZE")
    ] = "500MB",
) -> None:
    """Say how much memory the data's ids need.

    One pass over the training rows in the order of training. For each table: look-ups, distinct keys, when rows come
    back, hit rates of caches of every size by policy, and the cache worth having. Writes trace.json and trace.svg.
    """
    from sfctr.trace import Tracing, picture, write_trace

    options = Tracing(
        window=window,
        max_rows=None if max_rows is None else parse_count(max_rows, "--max-rows"),
        memory_bytes=parse_bytes(memory, "--memory"),
    )
    run = read_run_file(run_file, set_)
    out_dir = out or Path("runs") / run_file.stem / "trace"
    with _directory(out_dir):
        report, dense = _report(run, options, out_dir)
        written = write_trace(report, picture(report), out_dir)
    print(f"{trace_text(report, dense)}\n\nfiles: {', '.join(map(str, written))}")


def _report(run: RunFile, options: Tracing, spool_dir: Path) -> tuple[TraceReport, tuple[str, ...]]:
    """The trace of a run's training rows, and the names of the tables that are none of its business."""
    from sfctr.data import open_training
    from sfctr.models.registry import default_tables
    from sfctr.spec.inputs import tables_by_name
    from sfctr.store import Store
    from sfctr.trace import trace_batches, traced_features
    from sfctr.train.threads import first_threads

    tables = default_tables(run.model.name, run.schema, run.tables)
    tables_by_name(run.schema, tables)
    with Store(tables, threads=first_threads(run.train)) as store:  # empty: it knows the size of a row
        traced = _traced(store)
    traced_features(run.schema, traced)  # refused before a long read, if at all
    source, held_out = open_training(
        run.data, run.schema, batch_size=run.train.batch_size, seed=run.train.seed, spool_dir=spool_dir
    )
    if held_out is not None:
        held_out.close()
    with source:
        report = trace_batches(source, source.schema, traced, options)
    _say_unbounded(tables)
    return report, tuple(table.name for table in tables if table.dense)


def _say_unbounded(tables: Sequence[Table]) -> None:
    """A trace counts every key that the data have."""
    bounded = [table.name for table in tables if table.has_membership]
    if bounded:
        notice(
            f"keys of {', '.join(bounded)} come and go (capacity, admit_after, expire_after); the trace keeps them all,"
            " so its advice is an upper bound for these"
        )


def _traced(store: Store) -> tuple[TracedTable, ...]:
    """The tables of a store that grow with the data, as a trace sees them."""
    from sfctr.store import INDEX_BYTES
    from sfctr.trace import TracedTable

    return tuple(
        TracedTable(
            name=name,
            row_bytes=4 * store.group_of(name)[0].native.record_floats,
            index_bytes=INDEX_BYTES,
            buckets=table.buckets,
        )
        for name, table in store.tables.items()
        if not table.dense
    )


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """The directory, made if needed; where nothing comes of it, what was made for it goes again."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, and a directory is needed to write into; choose another --out DIR")
    made = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for each in made:
            with suppress(OSError):
                each.rmdir()
        raise
