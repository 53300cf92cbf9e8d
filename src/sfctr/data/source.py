"""A source of batches: one input under one resolved schema, read in threads of its own while a consumer takes batches.

Nothing is open, and no thread runs, unless an iterator of batches is under way. Iterators may be asked for as often as
wanted; a source is meant for one consumer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from inspect import GEN_RUNNING, getgeneratorstate
from types import TracebackType
from typing import Self
from weakref import WeakSet

import numpy as np

from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError, nearest
from sfctr.spec.schema import Schema
from sfctr.telemetry import notice

from .chunk import Chunk, Scan
from .convert import Converter
from .keys import Remember
from .order import BLOCK, SPAN, EpochOrder
from .prefetch import ahead, mapped
from .rows import cut, regrouped
from .split import Rule
from .spool import BlockStore
from .times import NO_TIME

_AHEAD_ROWS = 65_536  # rows read ahead of the consumer: they hide the pause when a shuffled span begins
_AHEAD_BATCHES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How rows become batches: first what changes their order, then what changes speed and memory."""

    batch_size: int
    shuffle: bool
    seed: int
    threads: int
    memory_bytes: int
    spool_dir: str | None


class Source:
    """Batches of one input under one resolved schema. A context manager; `close` gives back its spool.

    schema:         with every key type decided, and mean and std where a feature is standardised.
    num_rows:       rows an epoch gives, where that is known yet.
    log_odds_shift: add it to logits learnt from this source to undo the thinning of negatives; 0.0 where none was.
    """

    def __init__(
        self,
        scan: Scan,
        converter: Converter,
        rule: Rule,
        reading: Reading,
        *,
        num_rows: int | None,
        release: Callable[[], None],
    ) -> None:
        self.schema: Schema = converter.schema
        self.batch_size = reading.batch_size
        self.num_rows = num_rows
        self.log_odds_shift = rule.log_odds_shift
        self._scan, self._converter, self._rule, self._reading = scan, converter, rule, reading
        self._release = release
        self._store: BlockStore | None = None
        self._under_way: WeakSet[Generator[Batch, None, None]] = WeakSet()
        self._closed = False

    def batches(self, epoch: int = 0, *, start_row: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch, from row `start_row` of its order on. Closing the iterator ends its threads."""
        if self._closed:
            raise RuntimeError("the source is closed")
        work = self._shuffled if self._reading.shuffle else self._streamed
        depth = max(1, min(_AHEAD_BATCHES, _AHEAD_ROWS // self.batch_size))
        under_way = ahead(lambda: work(epoch, start_row), depth)
        self._under_way.add(under_way)
        return under_way

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(0)

    def strings(self, column: str) -> Mapping[int, str]:
        """Key -> text of what was read so far of a column (or feature) with keep_strings; ConfigError for others."""
        names = {f.name: f.columns[0] for f in self.schema.features}
        kept = self._converter.strings
        found = kept.get(column) or kept.get(names.get(column, ""))
        if found is None:
            raise ConfigError(
                f"no feature keeps the strings of '{column}'{nearest(column, kept)}; set keep_strings = true"
            )
        return found.snapshot()

    def remember_for(self, table: str) -> Remember | None:
        """Where texts of a table's keys go that come from elsewhere than its rows; None where none are kept."""
        return self._converter.remember_for(table)

    def restore_strings(self, texts: Mapping[str, Mapping[int, str]]) -> None:
        """Go on from the texts, by table and key, that another source of these rows had come to."""
        for table, of_table in texts.items():
            self._converter.restore_strings(table, of_table)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for batches in list(self._under_way):
            if getgeneratorstate(batches) != GEN_RUNNING:  # a thread hangs in it, and was left
                batches.close()
        if self._store is not None:
            self._store.close()
            self._store = None
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _convert(self, chunk: Chunk, first: int) -> tuple[Chunk, Batch | None]:
        """The chunk's kept rows, from row `first` of the source on; None where it has none of those."""
        if chunk.position + chunk.size <= first:
            return chunk, None
        time, known = self._converter.time(chunk), self._converter.labels(chunk)
        picked = self._rule.picked(chunk, time, known)
        batch = self._converter.batch(chunk, picked, time, known)
        return chunk, batch if chunk.position >= first else cut(batch, first - chunk.position, batch.size)

    def _converted(self, first: int = 0) -> Generator[Batch | None, None, None]:
        """The kept rows of the input in order, in batches as they come; a None for a chunk that has none of them.

        first: rows of the source before it are left out; only where all rows are kept, so that theirs are one count.
        """
        assert first == 0 or self._rule.takes_all
        threads = self._reading.threads
        columns = tuple(dict.fromkeys((*self._converter.columns, *self._rule.columns)))
        watch = _TimeOrder(self.schema) if not self._reading.shuffle and self._converter.with_labels else None
        rows = 0
        chunks = self._scan.chunks(columns, threads=threads)
        with (
            closing(chunks),
            closing(mapped(lambda chunk: self._convert(chunk, first), chunks, threads - 1)) as converted,
        ):
            for chunk, batch in converted:
                if watch is not None and batch is not None:
                    watch.see(chunk, batch)
                rows += chunk.size if self._rule.takes_all or batch is None else batch.size
                yield batch
        self.num_rows = rows

    def _streamed(self, epoch: int, start_row: int) -> Generator[Batch | None, None, None]:
        """File order: the same in every epoch."""
        # Where strings are kept every row must be seen; where rows are left out, reading tells which.
        if self._rule.takes_all and not self._converter.strings:
            yield from regrouped(self._converted(start_row), self.batch_size)
        else:
            yield from regrouped(self._converted(), self.batch_size, skip=start_row)

    def _shuffled(self, epoch: int, start_row: int) -> Generator[Batch | None, None, None]:
        if self._store is None:
            yield from self._fill_store()
        store = self._store
        assert store is not None
        order = EpochOrder(self._reading.seed, epoch, store.num_rows)
        yield from regrouped(self._picked_spans(store, order, start_row), self.batch_size)

    def _fill_store(self) -> Generator[None, None, None]:
        """Converts every row into blocks, once. Yields between blocks, so that it can be left."""
        store = BlockStore(self._reading.memory_bytes, self._reading.spool_dir)
        try:
            for block in regrouped(self._converted(), BLOCK):
                if block is not None:
                    store.append(block)
                yield None
            if self._store is None:  # another iterator may have been quicker
                self._store = store
        finally:
            if store is not self._store:
                store.close()

    def _picked_spans(self, store: BlockStore, order: EpochOrder, start_row: int) -> Iterator[Batch]:
        """The epoch's rows from start_row on, in parts that end where a batch does or a span does."""
        at = start_row
        while at < order.num_rows:
            span = at // SPAN
            end = min((span + 1) * SPAN, order.num_rows)
            positions = order.span(span)[at - span * SPAN :]
            pieces, (which, where) = store.pieces(positions)
            first = at
            while at < end:
                stop = min(end, at + self.batch_size - (at - start_row) % self.batch_size)
                rows = slice(at - first, stop - first)
                yield store.gather(pieces, (which[rows], where[rows]))
                at = stop
            del pieces  # before the next span's are read


class _TimeOrder:
    """Says once where a source that is read in file order steps back in time."""

    def __init__(self, schema: Schema) -> None:
        self._column = None if schema.time_column is None else schema.time_column.column
        self._latest = int(NO_TIME)

    def see(self, chunk: Chunk, batch: Batch) -> None:
        if self._column is None or batch.time is None or not batch.size:
            return
        known = batch.time != NO_TIME
        latest = np.maximum.accumulate(np.where(known, batch.time, NO_TIME))
        before = np.concatenate([[self._latest], np.maximum(latest[:-1], self._latest)])
        back = np.flatnonzero(known & (batch.time < before))
        self._latest = max(self._latest, int(latest[-1]))
        if len(back):
            row = int(batch.rows[back[0]]) - chunk.position
            place = f"{chunk.place.file}, row {chunk.place.row(row)}"
            notice(
                f"rows are not in order of the time column '{self._column}', first at {place};"
                " they are read in file order"
            )
            self._column = None
