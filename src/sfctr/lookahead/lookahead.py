"""Lookahead: batches in, Ready out, each with the rows of its working set in place.

With `window` W > 0 other threads read, find unique keys, plan and fetch up to W batches ahead of the one that trains
(pipeline.py); the results are those of W = 0. The threads end with the iterator: at its end, at an error on either
side, or when the iterator is closed or forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from sfctr import _native
from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError
from sfctr.spec.exchange import Exchange
from sfctr.spec.schema import Schema
from sfctr.store import Store

from .dicts import DictBatches
from .features import FeatureReader
from .id_batches import Ids
from .layout import layout_of, schema_of
from .pipeline import Pipeline
from .prepared import Prepared, Rows
from .ready import Ready
from .ready_rows import IdReader, ReadyRows

R = TypeVar("R", Ready, ReadyRows)


class _Reader(Protocol):
    """A kind of batches: what iterates over them, what their keys are, and what a batch becomes when it is its turn."""

    def __iter__(self) -> Iterator[Any]: ...
    def working_sets(self, batch: Any) -> tuple[_native.WorkingSet, ...]: ...
    def ready(self, prepared: Prepared, on_end: Callable[[], None]) -> Ready | ReadyRows: ...


class _BatchReader:
    """Batches of a schema."""

    def __init__(self, batches: Iterable[Any], rows: Rows, schema: Schema) -> None:
        self._batches, self._rows = batches, rows
        self._reader = FeatureReader(layout_of(schema, rows.store), rows.store)
        self.working_sets = self._reader.layout.working_sets

    def __iter__(self) -> Iterator[Batch]:
        return iter(DictBatches(self._batches, self._reader.layout.schema))

    def ready(self, prepared: Prepared, on_end: Callable[[], None]) -> Ready:
        return Ready(self._reader, prepared, self._rows, on_end=on_end)


class Lookahead(Generic[R]):
    """Iterates over the Ready of every batch, or over the ReadyRows of every batch of one's own.

    batches: a source; any iterable of spec Batch, or of dicts of columns (see dicts.py), with `schema`; or, with `ids`,
    whatever a loader gives to a model that sfctr.embed took in (see id_batches.py).
    schema: of the batches, where they do not carry one. ids: column -> the embedded module, or modules, that read it;
    or a function of the batch that gives {module: ids}.
    window: batches prepared ahead, 0 for none. exchange: with the other ranks, which read other parts of the batches.
    Asking for the next Ready while one is neither stepped nor discarded raises RuntimeError, and so does iterating
    where another Lookahead over the store is at work. Where no more rows can be held it raises CapacityError, and
    DiskError where the disk refuses, in place of the batch that would need them.
    """

    @overload
    def __init__(
        self: Lookahead[Ready],
        batches: Iterable[Batch] | Iterable[Mapping[str, Any]],
        store: Store,
        *,
        schema: Schema | None = None,
        window: int = 0,
        exchange: Exchange | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Lookahead[ReadyRows],
        batches: Iterable[Any],
        store: Store,
        *,
        ids: Ids,
        window: int = 0,
        exchange: Exchange | None = None,
    ) -> None: ...
    def __init__(
        self,
        batches: Iterable[Any],
        store: Store,
        *,
        schema: Schema | None = None,
        ids: Ids | None = None,
        window: int = 0,
        exchange: Exchange | None = None,
    ) -> None:
        if window < 0:
            raise ConfigError(f"window is {window} and must be at least 0")
        if schema is not None and ids is not None:
            raise ConfigError("give schema= or ids=: a schema says where keys are, and so do ids= of an embedded model")
        self._rows, self._window = Rows(store, exchange), window
        self._reader: _Reader
        if ids is None:
            self._reader = _BatchReader(batches, self._rows, schema_of(batches, schema))
        else:
            self._reader = IdReader(batches, self._rows, ids)

    def __iter__(self) -> Iterator[R]:
        self._rows.store.require_pretrained()
        with self._rows.store.looking_ahead():
            yield from self._ready()

    def _ready(self) -> Iterator[R]:
        pipeline = Pipeline(iter(self._reader), self._reader.working_sets, self._rows, self._window)
        ready: Ready | ReadyRows | None = None
        try:
            while (prepared := pipeline.next()) is not None:
                self._rows.begin(prepared)
                ready = self._reader.ready(prepared, pipeline.ended)
                yield cast(R, ready)
                if ready.is_open:
                    raise RuntimeError("the Ready before this one is still open; call its step() or discard() first")
        finally:
            pipeline.close()
            if ready is not None and ready.is_open:
                ready.discard()
