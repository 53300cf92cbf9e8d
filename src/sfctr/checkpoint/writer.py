"""Saves checkpoints while training goes on: what changes is taken between two steps, a thread writes it.

save() copies the dense part and begins a snapshot of the rows; that is the pause. The thread then takes the rows block
by block, of all groups in turn, since an update may wait for it where the snapshot's bound on memory is reached: it
never waits for training. What fails there is raised by wait() and close(). Where the disk refused, the next save() says
so and tries again, with all rows; it raises where two were refused in a row, and at once for any other error. Those
written before stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

from sfctr.spec.errors import CheckpointError
from sfctr.spec.snapshot import Snapshot
from sfctr.telemetry import notice, span

from .capture import Captured, TrainingState, capture
from .contents import Base, Removed, write_checkpoint
from .directory import CheckpointDirectory
from .disk import Disk
from .manifest import read_manifest


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that is on disk. pause_s: for which training stood still. num_bytes: that were written for it."""

    step: int
    path: Path
    kind: Literal["full", "changes"]
    pause_s: float
    write_s: float
    num_rows: int
    num_bytes: int


class Checkpointer:
    """Saves the checkpoints of one run in `directory`; close() it before the store that `snapshot` is of.

    keep: how many of the last are kept. full_every: at least every so many hold all rows by themselves.
    base: the checkpoint that the run was resumed from and whose rows count as saved; None where there is none.
    disk: for tests. Raises CheckpointError where what a killed process left cannot be put in order.
    """

    def __init__(
        self,
        directory: Path,
        snapshot: Snapshot,
        *,
        keep: int = 2,
        full_every: int = 8,
        base: Path | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._directory = CheckpointDirectory(directory, disk)
        self._snapshot = snapshot
        self._keep, self._full_every = keep, full_every
        self._base = None if base is None else Base(path=base, manifest=read_manifest(base))
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_failed_before = False
        self.last_saved: Saved | None = None
        with _named(directory):
            self._directory.recover()

    @property
    def is_busy(self) -> bool:
        """Whether one is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: TrainingState, *, skip_if_busy: bool = False) -> bool:
        """Take the run as it is now, between two steps; False where one is being written and this one is skipped.

        Else waits for that one. Raises CheckpointError where it and the one before failed, or this one cannot begin.
        """
        if skip_if_busy and self.is_busy:
            return False
        self._join()
        self._go_on_after_one_failure()
        began = perf_counter()
        path = self._directory.of_step(state.store.steps)
        with span("checkpoint", step=state.store.steps), _named(path):
            captured = capture(state)
            base = self._base_for(captured)
            self._snapshot.begin_snapshot(base is None)
            try:
                removed = [group.take_tombstones() for group in self._snapshot.groups]
                work = partial(self._write, captured, base, removed, began, perf_counter())
                self._thread = threading.Thread(target=copy_context().run, args=(work,), name="sfctr-checkpoint")
                self._thread.start()
            except BaseException:
                self._thread = None
                self._snapshot.end_snapshot(False)
                raise
        return True

    def wait(self) -> None:
        """Until nothing is being written. Raises CheckpointError where that failed."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _go_on_after_one_failure(self) -> None:
        """A disk that was full may have room again."""
        error, self._error = self._error, None
        if error is not None and (self._has_failed_before or not isinstance(error, CheckpointError)):
            raise error
        self._has_failed_before = error is not None
        if error is not None:
            notice(f"{error}; the next one is being tried")

    def close(self) -> None:
        """The same. Calling it again does nothing."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*([] if error is None else [Exception])):
            self.close()

    def _base_for(self, captured: Captured) -> Base | None:
        """Whose rows files a checkpoint follows; None: it must hold all rows."""
        base = self._base
        if base is None or self._snapshot.needs_full or len(base.manifest.chain) >= self._full_every:
            return None
        return base if base.manifest.groups == captured.layouts and base.is_there() else None

    # ----------------------------------------------------------------------------------------------- writer's thread

    def _write(self, captured: Captured, base: Base | None, removed: Removed, began: float, resumed: float) -> None:
        try:
            with span("checkpoint write", step=captured.step), _named(self._directory.of_step(captured.step)):
                beside = self._directory.begin(captured.step)
                written = write_checkpoint(beside, self._directory.disk, captured, base, self._snapshot.groups, removed)
                path = self._directory.complete(captured.step)
        except BaseException as error:
            self._base, self._error = None, error
            self._snapshot.end_snapshot(False)
            with suppress(OSError):
                self._directory.give_up(captured.step)
            return
        self._snapshot.end_snapshot(True)
        self._base = Base(path=path, manifest=written.manifest)
        self.last_saved = Saved(
            step=captured.step,
            path=path,
            kind=written.manifest.kind,
            pause_s=resumed - began,
            write_s=perf_counter() - resumed,
            num_rows=written.num_rows,
            num_bytes=written.num_bytes,
        )
        self._retain(captured.step, captured.best_step)

    def _retain(self, step: int, best_step: int | None) -> None:
        try:
            self._directory.retain(step, self._keep, () if best_step is None else (best_step,))
        except OSError as error:
            notice(f"{self._directory.path}: an older checkpoint could not be removed ({error.strerror}); remove it")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the disk refuses, as an error of the user's."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CheckpointError(
            f"{path}: the checkpoint could not be saved ({where}{error.strerror or error}); those saved before are"
            " intact, free space there or choose another run directory"
        ) from error
