"""A new run that begins from what fits of another run's checkpoint.

Rows, model and moments are taken over, with the steps that rows count; epochs, schedule, metrics and generators of
random numbers begin as in any new run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import nn

from sfctr.checkpoint import Checkpoint, open_checkpoint
from sfctr.data import Source
from sfctr.spec.peers import ALONE as NOBODY
from sfctr.spec.peers import Peers
from sfctr.spec.runfile import RunFile
from sfctr.store import Store

from .assembly import load_pretrained
from .ranks import ALONE, Ranks
from .resume import with_decided_features


@dataclass(frozen=True)
class Origin:
    """The checkpoint, and the names of what may differ (see checkpoint/restore.py)."""

    checkpoint: Checkpoint
    allow: tuple[str, ...]

    @classmethod
    def open(cls, directory: Path, allow: tuple[str, ...], peers: Peers = NOBODY) -> Origin:
        """Raises CheckpointError where it is missing or damaged. peers: all ranks, who ask together."""
        return cls(open_checkpoint(directory, peers=peers), allow)

    def settle(self, run: RunFile) -> RunFile:
        """With features read as the model has learnt them."""
        return with_decided_features(run, self.checkpoint.run)

    def fill(self, run: RunFile, model: nn.Module, store: Store, source: Source, ranks: Ranks = ALONE) -> Checkpoint:
        """Load rows and texts that fit; those that do not and begin from a file are read from there. Gives what the
        rest can be loaded from. Raises CheckpointError for a difference that is not allowed."""
        owns = ranks.owns(store)
        fitted = self.checkpoint.fitted(run, model, store, allow=self.allow)
        assert fitted.restore is not None
        fitted.load_store(store, owns, ranks.loop)
        tables, texts = fitted.restore.tables, fitted.strings()
        source.restore_strings({name: texts[old] for name, old in tables.items() if old in texts})
        dense = (name.removeprefix("table.") for name in fitted.restore.parameters if name.startswith("table."))
        taken = {*tables, *(name.rpartition(".")[0] for name in dense)}
        fresh = tuple(table for table in run.tables if table.name not in taken)
        load_pretrained(store, msgspec.structs.replace(run, tables=fresh), source, owns)
        return fitted
