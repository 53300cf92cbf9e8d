"""Checkpoints as files: those of a run's directory, for the loop."""

from __future__ import annotations

from pathlib import Path

from sfctr.checkpoint import Checkpoint, CheckpointDirectory, Checkpointer, open_checkpoint
from sfctr.spec.errors import CheckpointError, writing
from sfctr.spec.runfile import Checkpoints
from sfctr.store import Store
from sfctr.telemetry import notice


def newest_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest sound one; None where there is none at all. What is not sound is said, what was half done removed.

    Raises CheckpointError where there are some, and none is sound.
    """
    checkpoints = CheckpointDirectory(directory)
    with writing(directory):
        checkpoints.recover()
    found = checkpoints.newest()
    if found.path is None and found.skipped:
        raise CheckpointError(
            f"{directory}: no checkpoint is sound: {'; '.join(found.skipped)}; take them away to begin anew"
        )
    for reason in found.skipped:
        notice(f"{reason}; an older checkpoint is used")
    return None if found.path is None else open_checkpoint(found.path, is_checked=True)


def checkpointer(directory: Path, options: Checkpoints, store: Store, start: Checkpoint | None) -> Checkpointer:
    """For a store that holds what was loaded from `start`, or began anew (None)."""
    base = None
    if start is not None:
        base = start.directory
        store.mark_saved()
    return Checkpointer(directory, store, keep=options.keep, full_every=options.full_every, base=base)
