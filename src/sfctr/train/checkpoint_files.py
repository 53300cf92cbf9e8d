"""Checkpoints as files, by sfctr.checkpoint: what the loop asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sfctr.checkpoint import Checkpoint, CheckpointDirectory, Checkpointer, open_checkpoint
from sfctr.spec.batch import F32, U64
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile import Checkpoints
from sfctr.spec.snapshot import U32
from sfctr.store import Group, Store
from sfctr.telemetry import notice


def newest_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest sound checkpoint; None where there is none at all. What is not sound is said.

    Raises CheckpointError where there are some, and none is sound.
    """
    found = CheckpointDirectory(directory).newest()
    if found.path is None and found.skipped:
        raise CheckpointError(
            f"{directory}: no checkpoint is sound: {'; '.join(found.skipped)}; take them away to begin anew"
        )
    for reason in found.skipped:
        notice(f"{reason}; an older checkpoint is used")
    return None if found.path is None else open_checkpoint(found.path)


def checkpointer(directory: Path, options: Checkpoints, store: Store, start: Checkpoint | None) -> Checkpointer:
    base = None if start is None else start.directory
    snapshot = _WholeCopies(store)
    return Checkpointer(directory, snapshot, keep=options.keep, full_every=options.full_every, base=base)


class _WholeCopies:
    """Snapshots that copy all rows when they begin: what stands in until the native core hands them over."""

    needs_full = True

    def __init__(self, store: Store) -> None:
        self.groups: Sequence[_GroupCopy] = [_GroupCopy(group) for group in store.groups]

    def begin_snapshot(self, full: bool) -> None:
        for group in self.groups:
            group.begin()

    def end_snapshot(self, kept: bool) -> None:
        for group in self.groups:
            group.blocks.clear()


class _GroupCopy:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.blocks: list[tuple[int, U64, U32, F32]] = []

    def begin(self) -> None:
        self._group._lower()
        native, has_last = self._group.native, self._group.plan.has_membership
        for space in range(2 * len(self._group.plan.tables)):
            start: int | None = 0
            while start is not None:
                keys, records, start = native.export_rows(space, start, 1000)
                last = native.last_trained(space, keys) if has_last else np.empty(0, np.uint32)
                if keys.size:
                    self.blocks.append((space, keys, last, records))

    def take_snapshot(self, count: int) -> tuple[int, U64, U32, F32] | None:
        if not self.blocks:
            return None
        space, keys, last, records = self.blocks.pop(0)
        if keys.size > count:
            self.blocks.insert(0, (space, keys[count:], last[count:], records[count:]))
        return space, keys[:count], last[:count], records[:count]

    def take_tombstones(self) -> list[tuple[int, U64]]:
        return []
