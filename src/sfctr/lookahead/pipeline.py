"""The threads of look-ahead: one reads batches and finds their unique keys, one or two plan and fetch, in order.

            reader                    planner                     consumer
  batches ────────▶ known (announced) ────────▶ ready (in place) ────────▶ in training

Once rows are on disk a third thread fetches, in the order of plans, so that the disk is read while the next batch is
planned; not where there is a device tier, whose moves are the planner's, too.

At most `window` batches are in the pipeline, read but not yet handed out. The planner has their rows in RAM and, where
there is a device tier, there. It waits where batches that are ready or in training hold the room it needs, and goes on
when one of them ends: so the window shrinks by itself to what the tiers can hold. Whatever any thread raises reaches
the consumer in its place in the order. close() ends the threads and discards, oldest first, every batch that was not
handed out. A reader that hangs in the batches' own code cannot be ended: after a while it is left there, which is said,
and if it ever comes back it ends without touching the store.

With several ranks the readers of all share each batch with one another, and a reader tells the others when it has no
more. All of them end at the same batch.

Spans are numbered by the step that their batch will be, if none before it is discarded. All threads record into the
recorder of whoever made the pipeline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from sfctr.spec.errors import PeerError
from sfctr.telemetry import notice, span

from .prepared import Place, Prepared, Rows, WorkingSets

CLOSE_TIMEOUT_S = 5.0
"""How long close() waits for a reader that is in the batches' own code, beside what it may wait for other ranks."""


class Pipeline:
    """Prepared batches of one pass. `next()` gives them in order; with window 0 it does the work itself."""

    def __init__(
        self,
        batches: Iterator[Any],
        unique: Callable[[Any], WorkingSets],
        rows: Rows,
        window: int,
    ) -> None:
        self._batches, self._unique, self._rows, self._window = batches, unique, rows, window
        self._changed = threading.Condition()  # guards all that follows
        self._known: deque[Prepared] = deque()
        self._ready: deque[Prepared] = deque()
        self._planning: Prepared | None = None
        self._planned: deque[tuple[int, Prepared]] = deque()  # for the fetcher, with the number of the step
        self._fetching: Prepared | None = None
        self._fetcher: threading.Thread | None = None
        self._num_ended = 0
        self._num_read = self._num_placed = self._num_given = rows.store.steps
        self._stop = self._read_all = self._planned_all = self._others_stopped = False
        self._closing = False
        self._error: BaseException | None = None  # of the reader or the planner
        self._fetch_error: BaseException | None = None  # of a batch before those
        self._hangs = False
        self._threads: list[threading.Thread] = []
        if window > 0:
            self._start("reader", self._read)
            self._start("planner", self._plan)

    def _start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=copy_context().run, args=(work,), name=f"sfctr-lookahead-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def next(self) -> Prepared | None:
        """The next batch, its rows in place; None at the end."""
        if self._window == 0:
            return self._next_now()
        self._num_given += 1
        with span("wait", step=self._num_given), self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_over())
            if self._ready:
                prepared = self._ready.popleft()
                self._changed.notify_all()
                return prepared
        if (error := self._fetch_error or self._error) is not None:
            raise error
        self._require_others()
        return None

    def _is_over(self) -> bool:
        """Nothing more will be ready."""
        fetched_all = not self._planned and self._fetching is None
        return self._fetch_error is not None or (self._planned_all and fetched_all)

    def ended(self) -> None:
        """A batch that was handed out has ended: there may be room for one that waits."""
        with self._changed:
            self._num_ended += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._stop = self._closing = True
            self._changed.notify_all()
        self._join()
        planned = [self._fetching, *(prepared for _, prepared in self._planned), self._planning]
        for prepared in (*self._ready, *planned, *self._known):
            if prepared is not None:
                self._rows.discard(prepared)
        for waiting in (self._ready, self._planned, self._known):
            waiting.clear()
        self._fetching = self._planning = None
        close = getattr(self._batches, "close", None)
        if close is not None and not self._hangs:
            close()

    def _join(self) -> None:
        exchange = self._rows.exchange
        patience_s = CLOSE_TIMEOUT_S if exchange is None else exchange.timeout_s + CLOSE_TIMEOUT_S
        for thread, timeout_s in zip(self._threads, (patience_s, None, None), strict=False):  # one may yet be added
            thread.join(timeout_s)
        self._hangs = any(thread.is_alive() for thread in self._threads)
        if self._hangs:
            notice(
                f"the reader has not given a batch for {patience_s:g} s since it was asked to end: it is left"
                " where it hangs, and its files stay open"
            )

    def _next_batch(self) -> Prepared | None:
        self._num_read += 1
        with span("read", step=self._num_read):
            batch = next(self._batches, None)
        if batch is None or self._stop:
            return None
        with span("unique", step=self._num_read):
            own = self._unique(batch)
        prepared = self._rows.prepare(batch, own, self._num_read)
        self._others_stopped = prepared is None
        return prepared

    def _require_others(self) -> None:
        if self._others_stopped and not self._stop:
            raise PeerError("another rank has stopped, and this one has not; see what it says")

    def _next_now(self) -> Prepared | None:
        prepared = self._reading_now()
        if prepared is None:
            self._require_others()
            return None
        self._place_now("plan", self._rows.plan, prepared)
        self._place_now("plan", self._rows.place_copies, prepared)
        with span("fetch", step=self._num_read):
            self._rows.fetch(prepared)
        if self._rows.store.has_device_tier:
            self._place_now("lift", self._rows.lift, prepared)
        return prepared

    def _reading_now(self) -> Prepared | None:
        """The next batch; at the end, or where there is none to be had, the other ranks are told."""
        try:
            prepared = self._next_batch()
        except BaseException as error:
            self._tell_failure(error)
            raise
        if prepared is None and not self._others_stopped:
            self._rows.ended(read_all=True)
        return prepared

    def _tell_failure(self, error: BaseException) -> None:
        """Tell the other ranks why there is no next batch, unless one of them is why."""
        if not isinstance(error, PeerError):
            with suppress(PeerError):  # what ends this rank is the first error
                self._rows.failed(error)

    def _place_now(self, name: str, place: Place, prepared: Prepared) -> None:
        with span(name, step=self._num_read):
            for number in range(len(prepared.kept)):
                placed = place(prepared, number)
                assert placed, "no batch is in flight, so nothing can hold the room"

    # ------------------------------------------------------------------------------------------------ reader's thread

    def _read(self) -> None:
        try:
            while self._has_place() and (prepared := self._next_batch()) is not None:
                with self._changed:
                    if self._stop:
                        break
                    self._rows.announce(prepared)
                    self._known.append(prepared)
                    self._changed.notify_all()
            if not self._others_stopped:
                self._rows.ended(read_all=not self._stop)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
            self._tell_failure(error)
        finally:
            with self._changed:
                self._read_all = True
                self._changed.notify_all()

    def _has_place(self) -> bool:
        """Wait until the pipeline has a place for one more batch; False when it is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._num_inside() < self._window)
            return not self._stop

    def _num_inside(self) -> int:
        at_work = (self._planning is not None) + (self._fetching is not None)
        return len(self._known) + at_work + len(self._planned) + len(self._ready)

    # ----------------------------------------------------------------------------------------------- planner's thread

    def _plan(self) -> None:
        try:
            while self._take_known():
                assert self._planning is not None
                self._num_placed += 1
                prepared = self._planning
                for place in (self._rows.plan, self._rows.place_copies):
                    if not self._place("plan", place, prepared, "tiers.ram"):
                        return
                if self._fetches_beside():
                    self._hand_over(prepared)
                    continue
                with span("fetch", step=self._num_placed):
                    self._rows.fetch(prepared)
                if self._rows.store.has_device_tier and not self._lift(prepared):
                    return
                with self._changed:
                    self._ready.append(self._planning)
                    self._planning = None
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._stop = True
        finally:
            with self._changed:
                self._planned_all = True
                self._changed.notify_all()

    def _lift(self, prepared: Prepared) -> bool:
        return self._place("lift", self._rows.lift, prepared, "tiers.device")

    def _fetches_beside(self) -> bool:
        """Once it is so it stays so, and batches keep their order."""
        store = self._rows.store
        return store.is_spilling and not store.has_device_tier

    def _hand_over(self, prepared: Prepared) -> None:
        if self._fetcher is None:  # before it is given the batch: there may be no thread to be had
            self._fetcher = self._start("fetcher", self._fetch)
        with self._changed:
            self._planned.append((self._num_placed, prepared))
            self._planning = None
            self._changed.notify_all()

    def _take_known(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._known or self._read_all)
            if self._stop or not self._known:
                return False
            self._planning = self._known.popleft()
            return True

    def _place(self, name: str, place: Place, prepared: Prepared, tier: str) -> bool:
        """Place every group, waiting for batches to end where they hold the room; False when told to stop."""
        for number in range(len(prepared.kept)):
            while True:
                with self._changed:
                    seen = self._num_ended
                with span(name, step=self._num_placed):
                    if place(prepared, number):
                        break
                if not self._rows.store.is_shrinking(number):
                    notice(
                        f"the rows of {self._window + 1} batches do not fit into {tier}: fewer are prepared ahead where"
                        " they do not (train.window; no number changes)"
                    )
                with self._changed:
                    self._changed.wait_for(lambda seen=seen: self._stop or self._num_ended != seen)  # type: ignore[misc]
                    if self._stop:
                        return False
        return True

    # ----------------------------------------------------------------------------------------------- fetcher's thread

    def _fetch(self) -> None:
        try:
            while (step := self._take_planned()) is not None:
                assert self._fetching is not None
                with span("fetch", step=step):
                    self._rows.fetch(self._fetching)
                with self._changed:
                    self._ready.append(self._fetching)
                    self._fetching = None
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._fetch_error = error
                self._stop = True
                self._changed.notify_all()

    def _take_planned(self) -> int | None:
        """Take the next batch to fetch, and give its step; None when there will be none. The planner's error does not
        concern those planned before."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._planned or self._planned_all)
            if self._closing or not self._planned:
                return None
            step, self._fetching = self._planned.popleft()
            return step
