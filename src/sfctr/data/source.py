"""A source of batches: one input under one resolved schema, read in threads of its own while a consumer takes batches.

Nothing is open, and no thread runs, unless an iterator of batches is under way. Iterators may be asked for as often as
wanted; a source is meant for one consumer at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from inspect import GEN_RUNNING, getgeneratorstate
from types import TracebackType
from typing import Self
from weakref import WeakSet

import numpy as np

from sfctr.spec.batch import I64, Batch
from sfctr.spec.errors import ConfigError, DataError, nearest
from sfctr.spec.schema import Schema

from .chunk import Chunk, Scan
from .convert import Converter
from .keys import Remember
from .order import ALL_LANES, BLOCK, SPAN, EpochOrder, lane_bounds
from .prefetch import ahead, mapped
from .records import Picks, Records
from .rows import regrouped
from .split import Rule
from .spool import BlockStore, no_pieces
from .taking import Kept, Part, Wanted, judged, numbered, taken
from .time_order import TimeOrder

_AHEAD_ROWS = 65_536  # rows read ahead of the consumer: they hide the pause when a shuffled span begins
_AHEAD_BATCHES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How rows become batches: first what changes their order, then what changes speed and memory.

    lanes: those whose rows are read, one process's part of each batch; None: all, in batches that are whole.
    """

    batch_size: int
    shuffle: bool
    seed: int
    lanes: range | None = None
    threads: int
    memory_bytes: int
    spool_dir: str | None


class Source:
    """Batches of one input under one resolved schema. A context manager; `close` gives back its spool.

    With lanes it gives, for each batch of all processes, those of its rows that are in the lanes, be they none. With a
    part it gives that range of the rows, in batches of its own, and empty ones after them until all ranks' are as many.

    schema:         with every key type decided, and mean and std where a feature is standardised.
    num_rows:       rows an epoch gives to all processes together, where that is known yet.
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
        part: Part | None = None,
    ) -> None:
        assert part is None or not reading.shuffle
        assert reading.lanes is None or not reading.shuffle or num_rows is not None
        self.schema: Schema = converter.schema
        self.batch_size = reading.batch_size
        self.num_rows = num_rows
        self.log_odds_shift = rule.log_odds_shift
        self._scan, self._converter, self._rule, self._reading = scan, converter, rule, reading
        self._release, self._part = release, part
        self._store: BlockStore | None = None
        self._under_way: WeakSet[Generator[Batch, None, None]] = WeakSet()
        self._closed = False

    def batches(self, epoch: int = 0, *, start_row: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch, from row `start_row` of its order on (of all processes' rows). Closing the iterator
        ends its threads."""
        if self._closed:
            raise RuntimeError("the source is closed")
        work = self._shuffled if self._reading.shuffle else self._streamed
        depth = max(1, min(_AHEAD_BATCHES, _AHEAD_ROWS // self.batch_size))
        under_way = ahead(lambda: work(epoch, start_row), depth)
        self._under_way.add(under_way)
        return under_way

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(0)

    def sample(self) -> Batch | None:
        """The first batch in the order of the input, whatever that of an epoch; None where there is none. Nothing but
        the first rows is read, and a later epoch gives what it would have given."""
        with closing(self._streamed(0, 0)) as batches:
            return next((batch for batch in batches if batch is not None), None)

    def strings(self, column: str) -> Mapping[int, str]:
        """Key -> text of what was read so far of a column (or feature) with keep_strings; ConfigError for others.

        Of the rows that this process converted; what other processes saw, their sources say.
        """
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

    def _taken(self, kept: Kept, first: int, wanted: Wanted) -> tuple[Kept, Batch | None]:
        return kept, taken(kept, first, wanted, self._converter)

    def _judge(self, chunk: Chunk) -> Kept:
        return judged(chunk, self._rule, self._converter)

    def _in_threads(
        self, chunks: Generator[Chunk, None, None], wanted: Wanted
    ) -> Generator[tuple[Kept, Batch | None], None, None]:
        """Chunks with their wanted rows, in order."""
        threads = self._reading.threads - 1
        if self._rule.takes_all or wanted == Wanted():
            return mapped(lambda chunk: self._taken(self._judge(chunk), chunk.position, wanted), chunks, threads)
        found = numbered(map(self._judge, chunks), wanted.stop)
        return mapped(lambda each: self._taken(*each, wanted), found, threads)

    def _converted(self, wanted: Wanted) -> Generator[Batch | None, None, None]:
        """The wanted rows of the input in order, in batches as they come; a None for a chunk that has none of them."""
        columns = tuple(dict.fromkeys((*self._converter.columns, *self._rule.columns)))
        watch = TimeOrder(self.schema) if not self._reading.shuffle and self._converter.with_labels else None
        seen = given = 0
        within = None
        if self._rule.takes_all and (wanted.start or wanted.stop is not None):
            within = (wanted.start, sys.maxsize if wanted.stop is None else wanted.stop)
        chunks = self._scan.chunks(columns, threads=self._reading.threads, within=within)
        with closing(chunks), closing(self._in_threads(chunks, wanted)) as found:
            for kept, batch in found:
                if watch is not None and batch is not None:
                    watch.see(kept)
                seen = kept.chunk.position + kept.chunk.size if self._rule.takes_all else seen + kept.size
                given += 0 if batch is None else batch.whole_size
                yield batch
        if wanted.stop is None and (seen or not wanted.start):
            self.num_rows = seen
        elif wanted.stop is not None and given != wanted.stop - wanted.start:
            self._refuse_other_count(wanted.start + given)

    def _refuse_other_count(self, found: int) -> None:
        raise DataError(
            f"it gave {found:,} rows, and more of them when it was opened",
            file=self._scan.name,
            remedy="leave it unchanged while it is read",
        )

    def _streamed(self, epoch: int, start_row: int) -> Generator[Batch | None, None, None]:
        """File order: the same in every epoch."""
        if self._part is not None:
            yield from self._padded(self._part, start_row)
            return
        lanes = self._reading.lanes
        # Where strings are kept every row must be seen; where rows are left out, reading tells which.
        if self._rule.takes_all and not self._converter.strings:
            yield from regrouped(self._converted(Wanted(start=start_row, lanes=lanes)), self.batch_size)
        else:
            yield from regrouped(self._converted(Wanted(lanes=lanes)), self.batch_size, skip=start_row)

    def _padded(self, part: Part, start_row: int) -> Generator[Batch | None, None, None]:
        assert start_row == 0, "parts are read from their first row"
        given = 0
        if part.start < part.stop:
            wanted = Wanted(start=part.start, stop=part.stop)
            for batch in regrouped(self._converted(wanted), self.batch_size):
                given += batch is not None
                yield batch
        for _ in range(given, part.num_batches):
            yield self._converter.empty()

    def _shuffled(self, epoch: int, start_row: int) -> Generator[Batch | None, None, None]:
        first, stop = self._rows_to_store()
        if self._store is None and first != stop:
            yield from self._fill_store(Wanted(start=first, stop=stop))
        num_rows = self.num_rows
        if self._reading.lanes is None:
            assert self._store is not None
            num_rows = self._store.num_rows
        assert num_rows is not None
        lanes = ALL_LANES if self._reading.lanes is None else self._reading.lanes
        order = EpochOrder(self._reading.seed, epoch, num_rows, lanes)
        yield from regrouped(self._picked_spans(order, first, start_row), self.batch_size)

    def _rows_to_store(self) -> tuple[int, int | None]:
        """The range of the kept rows that the lanes have; without lanes, all of them, however many there are."""
        lanes = self._reading.lanes
        if lanes is None:
            return 0, None
        assert self.num_rows is not None
        bounds = lane_bounds(self.num_rows)
        return int(bounds[lanes.start]), int(bounds[lanes.stop])

    def _fill_store(self, wanted: Wanted) -> Generator[None, None, None]:
        """Converts the wanted rows into blocks, once. Yields between blocks, so that it can be left."""
        store = BlockStore(self._reading.memory_bytes, self._reading.spool_dir)
        try:
            for block in regrouped(self._converted(wanted), BLOCK):
                if block is not None:
                    store.append(block)
                yield None
            if self._store is None:  # another iterator may have been quicker
                self._store = store
        finally:
            if store is not self._store:
                store.close()

    def _picked_spans(self, order: EpochOrder, stored_from: int, start_row: int) -> Iterator[Batch]:
        """The epoch's rows from start_row on, in parts that end where a batch does or a span does.

        stored_from: position among the source's rows of the first row in store.
        """
        at = start_row
        while at < order.num_rows:
            span = at // SPAN
            end = min((span + 1) * SPAN, order.num_rows)
            rows, positions = order.span(span)
            begin = int(np.searchsorted(rows, at))
            rows = rows[begin:]
            pieces, (which, where) = self._pieces(positions[begin:] - stored_from)
            while at < end:
                stop = min(end, at + self.batch_size - (at - start_row) % self.batch_size)
                part = slice(*np.searchsorted(rows, [at, stop]))
                yield self._part_of_batch(pieces, (which[part], where[part]), stop - at, rows[part] - at)
                at = stop
            del pieces  # before the next span's are read

    def _pieces(self, positions: I64) -> tuple[Sequence[Records], Picks]:
        return no_pieces() if self._store is None else self._store.pieces(positions)

    def _part_of_batch(self, pieces: Sequence[Records], picks: Picks, whole: int, places: I64) -> Batch:
        if self._store is None or not len(places):
            part = self._converter.empty()
        else:
            part = self._store.gather(pieces, picks)
        return part if self._reading.lanes is None else replace(part, whole=whole, places=places)
