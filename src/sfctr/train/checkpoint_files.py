"""Checkpoints as files: those of a run's directory, for the loop of each rank."""

from __future__ import annotations

from pathlib import Path

from sfctr.checkpoint import Checkpoint, CheckpointDirectory, Checkpointer, open_checkpoint
from sfctr.spec.errors import CheckpointError, writing
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.runfile import Checkpoints
from sfctr.spec.together import Together
from sfctr.store import Store
from sfctr.telemetry import notice


def newest_checkpoint(directory: Path, peers: Peers = ALONE) -> Checkpoint | None:
    """The newest sound one; None where there is none at all. What is not sound is said, what was half done removed.

    peers: all ranks, who ask together: rank 0 looks for it, and it is the same for all.
    Raises CheckpointError where there are some, and none is sound.
    """
    with Together(peers, "checkpoint") as together:
        path = _find_newest(directory) if together.is_first else None
        name = together.hear_first(b"" if path is None else path.name.encode()).decode()
        return open_checkpoint(directory / name, is_checked=True) if name else None


def _find_newest(directory: Path) -> Path | None:
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
    return found.path


def checkpointer(
    directory: Path, options: Checkpoints, store: Store, start: Checkpoint | None, peers: Peers = ALONE
) -> Checkpointer:
    """For a store that holds what was loaded from `start`, or began anew (None). peers: all ranks, for it alone."""
    base = None
    if start is not None:
        base = start.directory
        store.mark_saved()
    return Checkpointer(directory, store, keep=options.keep, full_every=options.full_every, base=base, peers=peers)
