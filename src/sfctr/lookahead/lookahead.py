"""Lookahead: batches in, Ready out, each with the rows of its working set in place.

With `window` W > 0 two threads read, find unique keys, plan and fetch up to W batches ahead of the one that trains
(pipeline.py); the results are those of W = 0. The threads end with the iterator: at its end, at an error on either
side, or when the iterator is closed or forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError
from sfctr.spec.schema import Schema
from sfctr.store import Store

from .features import FeatureReader
from .layout import layout_of, schema_of
from .pipeline import Pipeline
from .ready import Ready, latest_time


class Lookahead:
    """Iterates over the Ready of every batch.

    batches: a source, or any iterable of spec Batch. schema: of the batches, where they do not carry one.
    window: batches prepared ahead, 0 for none.
    Asking for the next Ready while one is neither stepped nor discarded raises RuntimeError. Where no more rows can be
    held it raises CapacityError, and DiskError where the disk refuses, in place of the batch that would need them.
    """

    def __init__(
        self, batches: Iterable[Batch], store: Store, *, schema: Schema | None = None, window: int = 0
    ) -> None:
        if window < 0:
            raise ConfigError(f"window is {window} and must be at least 0")
        self._batches, self._store, self._window = batches, store, window
        self._reader = FeatureReader(layout_of(schema_of(batches, schema), store), store)

    def __iter__(self) -> Iterator[Ready]:
        pipeline = Pipeline(iter(self._batches), self._reader.layout.working_sets, self._store, self._window)
        ready: Ready | None = None
        try:
            while (prepared := pipeline.next()) is not None:
                self._store.settle(prepared[1], latest_time(prepared[0]))
                ready = Ready(self._reader, *prepared, self._store, on_end=pipeline.ended)
                yield ready
                if ready.is_open:
                    raise RuntimeError("the Ready before this one is still open; call its step() or discard() first")
        finally:
            pipeline.close()
            if ready is not None and ready.is_open:
                ready.discard()
