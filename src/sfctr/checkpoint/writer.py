"""Saves checkpoints while training goes on: what changes is taken between two steps, a thread writes it.

save() copies the dense part and begins a snapshot of the rows; that is the pause. The thread then takes the rows block
by block, of all groups in turn, since an update may wait for it where the snapshot's bound on memory is reached: it
never waits for training. What fails there is raised by wait() and close(). Where the disk refused, the next save() says
so and tries again, with all rows; it raises where two were refused in a row, and at once for any other error. Those
written before stay as they are.

Of several ranks each writes its own rows, into one directory, and rank 0 all else; there is a checkpoint when all of
them have, and what one cannot write none keeps. They make the same calls: the thread that trains speaks with the other
ranks only while none of the writing threads is at work.
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

import msgspec

from sfctr.spec.errors import CheckpointError
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.snapshot import Snapshot
from sfctr.spec.together import Together
from sfctr.telemetry import notice, span

from .capture import Captured, TrainingState, capture
from .contents import Base, Part, Removed, begin_checkpoint, finish_checkpoint, write_part
from .directory import CheckpointDirectory
from .disk import Disk
from .manifest import Manifest, manifest_bytes, parsed_manifest, read_manifest


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
    peers: all ranks, for nobody else; every one makes a Checkpointer, and `directory` is the same for all.
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
        peers: Peers = ALONE,
        disk: Disk | None = None,
    ) -> None:
        self._peers = peers
        self._directory = CheckpointDirectory(directory, disk)
        self._snapshot = snapshot
        self._keep, self._full_every = keep, full_every
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_failed_before = False
        self.last_saved: Saved | None = None
        with self._together() as together, _named(directory):
            self._base = None if base is None else Base(path=base, manifest=read_manifest(base))
            if together.is_first:
                self._directory.recover()

    @property
    def is_busy(self) -> bool:
        """Whether one is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: TrainingState, *, skip_if_busy: bool = False) -> bool:
        """Take the run as it is now, between two steps; False where one is being written and this one is skipped (with
        one process alone: some ranks may have written theirs).

        Else waits for that one. Raises CheckpointError where it and the one before failed, or this one cannot begin.
        """
        if skip_if_busy and self.is_busy and self._peers.size == 1:
            return False
        self._join()
        self._go_on_after_one_failure()
        began = perf_counter()
        path = self._directory.of_step(state.store.steps)
        with span("checkpoint", step=state.store.steps), _named(path):
            captured, base = self._begin(state)
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

    def _begin(self, state: TrainingState) -> tuple[Captured, Base | None]:
        """With a snapshot that has begun on all ranks, or on none."""
        has_begun = False
        try:
            with self._together() as together:
                captured = capture(state, is_first=together.is_first)
                base = self._base_for(captured)
                if b"full" in together.say(b"full" if base is None else b"changes"):
                    base = None
                self._snapshot.begin_snapshot(base is None)
                has_begun = True
        except BaseException:
            if has_begun:
                self._snapshot.end_snapshot(False)
            raise
        return captured, base

    def wait(self) -> None:
        """Until nothing is being written. Raises CheckpointError where that failed."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            with span("checkpoint wait"):
                self._thread.join()
            self._thread = None

    def _go_on_after_one_failure(self) -> None:
        """A disk that was full may have room again."""
        error, self._error = self._error, None
        if error is not None and (self._has_failed_before or not isinstance(error, CheckpointError)):
            raise error
        self._has_failed_before = error is not None
        if error is not None and self._peers.rank == 0:
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

    def _together(self) -> Together:
        return Together(self._peers, "checkpoint")

    def _base_for(self, captured: Captured) -> Base | None:
        """Whose rows files a checkpoint follows; None: it must hold all rows."""
        base = self._base
        if base is None or self._snapshot.needs_full or len(base.manifest.chain) >= self._full_every:
            return None
        return base if base.manifest.groups == captured.layouts and base.is_there() else None

    # ----------------------------------------------------------------------------------------------- writer's thread

    def _write(self, captured: Captured, base: Base | None, removed: Removed, began: float, resumed: float) -> None:
        try:
            path = self._directory.of_step(captured.step)
            with span("checkpoint write", step=captured.step), self._together() as together, _named(path):
                num_rows, manifest = self._write_all(together, captured, base, removed)
        except BaseException as error:
            self._base, self._error = None, error
            self._snapshot.end_snapshot(False)
            with suppress(OSError):
                if self._peers.rank == 0:
                    self._directory.give_up(captured.step)
            return
        self._snapshot.end_snapshot(True)
        self._base = Base(path=path, manifest=manifest)
        linked = () if base is None else base.rows_files()
        written = [facts.bytes for name, facts in manifest.files.items() if name not in linked]
        self.last_saved = Saved(
            step=captured.step,
            path=path,
            kind=manifest.kind,
            pause_s=resumed - began,
            write_s=perf_counter() - resumed,
            num_rows=num_rows,
            num_bytes=sum(written) + len(manifest_bytes(manifest)),
        )
        if self._peers.rank == 0:
            self._retain(captured.step, captured.best_step)

    def _write_all(
        self, together: Together, captured: Captured, base: Base | None, removed: Removed
    ) -> tuple[int, Manifest]:
        """Rows written by all ranks, and the manifest. A rank goes on when all have come as far as it has."""
        directory, disk, step = self._directory, self._directory.disk, captured.step
        if together.is_first:
            begin_checkpoint(directory.begin(step), disk, captured, base)
        together.say()
        groups, beside = self._snapshot.groups, directory.beside(step)
        mine = write_part(beside, disk, captured, base, groups, removed, self._peers.rank)
        parts = [msgspec.json.decode(part, type=Part) for part in together.say(msgspec.json.encode(mine))]
        text = b""
        if together.is_first:
            text = manifest_bytes(finish_checkpoint(beside, disk, captured, base, parts))
            directory.complete(step)
        manifest = parsed_manifest(together.hear_first(text), beside)
        return sum(part.num_rows_written for part in parts), manifest

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
