"""Which rows of an input one process takes: the rows that the rule keeps, and of those a range, some lanes, or all.

Kept rows are numbered over the whole source. Where the rule keeps all rows, a chunk's position is the number of its
first row; elsewhere that is known when the chunks before it have been judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sfctr.spec.batch import F32, I64, Batch, Bools

from .chunk import Chunk
from .convert import Converter
from .order import dealt
from .split import Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Kept rows start <= i < stop (None: to the end); of these, where lanes are given, those of lane i % LANES."""

    start: int = 0
    stop: int | None = None
    lanes: range | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A range of a source's rows that one of several processes reads, and how many batches each of them gives."""

    start: int
    stop: int
    num_batches: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A chunk, judged. rows: positions in it of the rows that are kept; None: all. time, known: of the whole chunk."""

    chunk: Chunk
    rows: I64 | None
    time: I64 | None
    known: tuple[F32, Bools]

    @property
    def size(self) -> int:
        return self.chunk.size if self.rows is None else len(self.rows)


def judged(chunk: Chunk, rule: Rule, converter: Converter) -> Kept:
    time, known = converter.time(chunk), converter.labels(chunk)
    return Kept(chunk, rule.picked(chunk, time, known), time, known)


def numbered(found: Iterable[Kept], stop: int | None) -> Iterator[tuple[Kept, int]]:
    """Each chunk with the number of its first kept row, as long as that is below `stop`."""
    first = 0
    for kept in found:
        yield kept, first
        first += kept.size
        if stop is not None and first >= stop:
            return


def taken(kept: Kept, first: int, wanted: Wanted, converter: Converter) -> Batch | None:
    """The wanted rows of a chunk whose kept rows are numbered from `first`; None: it has none of the range."""
    start = max(0, wanted.start - first)
    stop = kept.size if wanted.stop is None else min(kept.size, wanted.stop - first)
    if start >= stop:
        return None
    if wanted.lanes is None:
        everything = (start, stop) == (0, kept.size)
        return _converted(kept, None if everything else np.arange(start, stop), converter)
    places = dealt(first + start, stop - start, wanted.lanes)
    part = _converted(kept, start + places, converter) if len(places) else converter.empty()
    return replace(part, whole=stop - start, places=places)


def _converted(kept: Kept, which: I64 | None, converter: Converter) -> Batch:
    """which: of the kept rows; None: all of them."""
    rows = kept.rows if which is None else which if kept.rows is None else kept.rows[which]
    return converter.batch(kept.chunk, rows, kept.time, kept.known)


def part_of(rank: int, size: int, *, num_rows: int, batch_size: int, edges: Sequence[int]) -> Part:
    """The rank's of `size` ranges of num_rows rows, as equal as may be, but that a cut moves to the nearest of `edges`
    where that is no farther than a quarter of a range: what lies between two edges is then read by one rank alone."""
    cuts = np.arange(size + 1) * num_rows // size
    if len(edges):
        known = np.append(edges, num_rows)
        after = np.minimum(np.searchsorted(known, cuts), len(known) - 1)
        near = np.stack([known[np.maximum(after - 1, 0)], known[after]])
        best = near[np.argmin(np.abs(near - cuts), axis=0), np.arange(size + 1)]
        inner = slice(1, size)
        cuts[inner] = np.where(np.abs(best - cuts) * 4 * size <= num_rows, best, cuts)[inner]
    batches = -(-np.diff(cuts) // batch_size)
    return Part(start=int(cuts[rank]), stop=int(cuts[rank + 1]), num_batches=int(batches.max()))
