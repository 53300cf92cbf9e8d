"""Lookahead: batches in, Ready out, each with the rows of its working set in place.

With `window` W > 0 a thread reads up to W batches ahead and finds their unique keys while the step before them trains;
what depends on rows is done when a batch's turn comes, so the results are those of W = 0. The thread ends with the
iterator: at its end, at an error on either side, or when the iterator is closed or forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sfctr import _native
from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError
from sfctr.spec.schema import Schema
from sfctr.store import Store
from sfctr.telemetry import span

from .ahead import run_ahead
from .features import FeatureReader
from .layout import layout_of, schema_of
from .ready import Ready

_Prepared = tuple[Batch, tuple[_native.WorkingSet, ...]]


class Lookahead:
    """Iterates over the Ready of every batch.

    batches: a source, or any iterable of spec Batch. schema: of the batches, where they do not carry one.
    window: batches prepared ahead, 0 for none.
    Asking for the next Ready while one is neither stepped nor discarded raises RuntimeError.
    """

    def __init__(
        self, batches: Iterable[Batch], store: Store, *, schema: Schema | None = None, window: int = 0
    ) -> None:
        if window < 0:
            raise ConfigError(f"window is {window} and must be at least 0")
        self._batches, self._store, self._window = batches, store, window
        self._reader = FeatureReader(layout_of(schema_of(batches, schema), store), store)

    def __iter__(self) -> Iterator[Ready]:
        open_ready: Ready | None = None
        prepared = run_ahead(self._prepare(), self._window)
        try:
            for batch, working_sets in prepared:
                if open_ready is not None and open_ready.is_open:
                    raise RuntimeError("the Ready before this one is still open; call its step() or discard() first")
                with span("locate"):
                    for group, working_set in zip(self._store.groups, working_sets, strict=True):
                        group.native.locate(working_set, True)
                open_ready = Ready(self._reader, batch, working_sets, self._store)
                yield open_ready
        finally:
            prepared.close()

    def _prepare(self) -> Iterator[_Prepared]:
        batches = iter(self._batches)
        while True:
            with span("read"):
                batch = next(batches, None)
            if batch is None:
                return
            with span("unique"):
                working_sets = self._reader.layout.working_sets(batch)
            yield batch, working_sets
