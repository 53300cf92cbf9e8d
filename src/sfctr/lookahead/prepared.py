"""A batch on its way to training, and what is done with its rows: by the store alone, or by all ranks together.

K labels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sfctr import _native
from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError, mark_agreed
from sfctr.spec.exchange import Exchange, Shared, Whole
from sfctr.store import Store
from sfctr.telemetry import span

WorkingSets = tuple[_native.WorkingSet, ...]


class Prepared:
    """batch: of any kind. own: the working sets that features() reads, one a group.

    shared: the same batch over all ranks, where there are several.
    """

    def __init__(self, batch: Any, own: WorkingSets, shared: Shared | None = None) -> None:
        self.batch, self.own, self.shared = batch, own, shared

    @property
    def kept(self) -> WorkingSets:
        """The working sets whose rows the store of this process keeps in place, trains and writes."""
        return self.own if self.shared is None else self.shared.owned

    @property
    def time(self) -> int | None:
        """The greatest event time of the batch, ns since 1970."""
        if self.shared is not None:
            return self.shared.whole.time
        return latest_time(self.batch) if isinstance(self.batch, Batch) else None


class Rows:
    """What becomes of the rows of batches: in the store, and with an exchange in those of all ranks.

    Each call is as that of Store or Exchange, for the working sets of a batch; the threads are those of Pipeline.
    """

    def __init__(self, store: Store, exchange: Exchange | None = None) -> None:
        self.store, self.exchange = store, exchange

    def prepare(self, batch: Any, own: WorkingSets, step: int) -> Prepared | None:
        """None: another rank has stopped. step: that it will be, for the span. Raises PeerError."""
        if self.exchange is None:
            return Prepared(batch, own)
        with span("share", step=step):
            shared = self.exchange.share(whole_of(batch), own)
        if shared is not None and isinstance(batch, Batch) and shared.whole.size != batch.whole_size:
            raise ConfigError(
                f"the ranks' parts of a batch have {shared.whole.size} rows together and it has {batch.whole_size};"
                " have the same files on all machines"
            )
        return None if shared is None else Prepared(batch, own, shared)

    def ended(self, *, read_all: bool) -> None:
        """There is no next batch: all were read, or this rank stopped before. Raises PeerError."""
        if self.exchange is not None:
            self.exchange.end(read_all=read_all)

    def failed(self, error: BaseException) -> None:
        """There is no next batch, because of this; all ranks learn of it in its place. Raises PeerError."""
        if self.exchange is not None:
            self.exchange.fail(error)
            mark_agreed(error)

    def announce(self, prepared: Prepared) -> None:
        self.store.announce(prepared.kept)
        if self.exchange is not None:
            self.exchange.announce(prepared.shared)

    def plan(self, prepared: Prepared, number: int) -> bool:
        return self.store.plan(prepared.kept, number)

    def place_copies(self, prepared: Prepared, number: int) -> bool:
        return self.exchange is None or self.exchange.place(prepared.shared, number)

    def lift(self, prepared: Prepared, number: int) -> bool:
        return self.store.lift(prepared.kept, number)

    def fetch(self, prepared: Prepared) -> None:
        self.store.fetch(prepared.kept)

    def begin(self, prepared: Prepared) -> None:
        """It is the batch's turn, and the one before has ended: what its rows are is decided, and they are there.

        Whatever is raised, the batch has then ended.
        """
        try:
            self.store.settle(prepared.kept, prepared.time)
            if self.exchange is not None:
                with span("bring", step=self.store.steps + 1):
                    self.exchange.bring_rows(prepared.shared, self.store.groups)
        except BaseException:
            self.discard(prepared)
            raise

    def merge(self, prepared: Prepared) -> None:
        """Have the gradients of all ranks, merged, where rows are kept."""
        if self.exchange is not None:
            with span("send", step=self.store.steps + 1):
                self.exchange.send_gradients(prepared.shared, self.store.groups)

    def commit(self, prepared: Prepared, *, lr_factor: float, scale: float) -> None:
        self.store.commit(prepared.kept, lr_factor=lr_factor, scale=scale)
        if self.exchange is not None:
            self.exchange.commit(prepared.shared, self.store.steps, lr_factor=lr_factor, scale=scale)
            self._let_go(prepared)

    def discard(self, prepared: Prepared) -> None:
        self.store.discard(prepared.kept)
        if self.exchange is not None:
            self.exchange.discard(prepared.shared)
            self._let_go(prepared)

    def _let_go(self, prepared: Prepared) -> None:
        """Of rows that were brought."""
        for group, working_set in zip(self.store.groups, prepared.own, strict=False):
            group.discard(working_set)

    def squares(self, prepared: Prepared) -> list[float]:
        """Of each group, the squared norm of the gradients of the rows that are kept."""
        pairs = zip(self.store.groups, prepared.kept, strict=True)
        return [group.grad_norm_squared(working_set) for group, working_set in pairs]

    def view(self, own: Sequence[_native.WorkingSet]) -> None:
        """See Store.view and Exchange.view."""
        if self.exchange is None:
            self.store.view(own)
        else:
            self.exchange.view(own, self.store.groups, self.store.view)


Place = Callable[[Prepared, int], bool]
"""A tier for one group of a batch; False where batches in flight hold the room."""


def whole_of(batch: Any) -> Whole:
    """As far as this rank knows it. Batches of one's own have no labels, and count as one row."""
    if not isinstance(batch, Batch):
        return Whole(size=1, weights=np.zeros(0), time=None)
    known = batch.label_mask.astype(np.float64)
    weights = known if batch.weight is None else known * batch.weight[:, None].astype(np.float64)
    return Whole(size=batch.size, weights=weights.sum(axis=0), time=latest_time(batch))


def latest_time(batch: Batch) -> int | None:
    """The greatest event time of a batch, ns since 1970; missing times are below all others."""
    return None if batch.time is None or batch.size == 0 else int(batch.time.max())
