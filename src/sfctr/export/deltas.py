"""Deltas: what changed of a run's rows since a base, in numbered directories that follow each other.

  base/      a full export, see bundle.py
  000001/    rows changed and keys removed since the base, the dense part, and delta.json, written last
  000002/    the same since 000001; and so on

Each is complete or absent: written beside, synced and renamed. What cannot be written raises, and the next delta has it
again: rows count as sent only when they lie there. docs/format/deltas.md says it in full.

Where several ranks hold the rows between them all make the same calls, and rank 0 writes; rows count as sent on all of
them or on none.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import torch

from sfctr.data.whole_directory import beside, put_in_place, sync, sync_all
from sfctr.spec.batch import U64
from sfctr.spec.errors import CheckpointError, writing
from sfctr.spec.owned import Owns
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.schema import key_type_of_table
from sfctr.spec.tables import Table
from sfctr.spec.together import Together
from sfctr.store import RowBlock, Store, Unsent
from sfctr.telemetry import notice

from .bundle import Trained, export_model, program_of, save_program
from .chain import Chain, Delta, read_delta, write_delta
from .files import facts_of, read_facts, rows_file
from .gathered import Gathered
from .rows import Columns, write_rows

BASE = "base"


class Deltas:
    """The deltas in `directory`, of the rows in `store`. begin() or go_on() comes first. Between two steps.

    peers: all ranks; `store` has the rows of this one.
    """

    def __init__(self, directory: Path, store: Store, peers: Peers = ALONE) -> None:
        self.directory, self._store, self._peers = directory, store, peers
        self.chain: Chain | None = None
        self._program: torch.export.ExportedProgram | None = None

    def begin(self) -> None:
        """Without a base: what lies there, of a course that the run has left, is taken away."""
        self.chain = None
        with self._together() as together, writing(self.directory):
            if together.is_first:
                shutil.rmtree(self.directory, ignore_errors=True)

    def go_on(self, chain: Chain, unsent: Mapping[str, Unsent], owns: Owns | None = None) -> None:
        """With what was so when a checkpoint was taken, and a store that holds its rows.

        Later deltas are taken away: they are written again, with the same ids if the run goes the same way. Where the
        base, or the last delta, is not there any more it begins anew, said aloud. owns: which of the keys are this
        rank's; None: all.
        """
        with self._together() as together:
            is_there = self._is_there(chain) if together.is_first else False
            if not together.hear_first(b"there" if is_there else b""):
                self._begin_anew()
                return
            if together.is_first:
                self._remove_after(chain.number)
        self.chain = chain
        self._store.mark_sent()
        for table, keys in unsent.items():
            self._store.mark_unsent(table, keys if owns is None else _own(table, keys, owns))

    def _begin_anew(self) -> None:
        if self._peers.rank == 0:
            notice(
                f"{self.directory} does not hold what the deltas of this run go on from: they begin anew, with a new"
                " base"
            )
        self.begin()

    def _remove_after(self, number: int) -> None:
        with writing(self.directory):
            for path in self.directory.iterdir():
                if path != self.directory / BASE and not (path.name.isdecimal() and int(path.name) <= number):
                    shutil.rmtree(path)

    def unsent(self) -> dict[str, Unsent]:
        """By table that is not dense, what go_on() needs, of all ranks; empty without a base, and on the others than
        rank 0."""
        if self.chain is None:
            return {}
        with self._together() as together:
            if self._needs_base(together):
                return {}
            found, gathered = {}, Gathered(self._peers, together)
            for name, table in self._store.tables.items():
                if not table.dense:
                    mine = self._store.unsent_keys(name)
                    keys, beside, gone = gathered.keys((mine.keys, mine.beside, mine.gone))
                    found[name] = Unsent(keys=keys, beside=beside, gone=np.sort(gone))
            return found if together.is_first else {}

    def _together(self) -> Together:
        return Together(self._peers, "export")

    def _needs_base(self, together: Together) -> bool:
        return any(together.say(b"base" if self._store.needs_base() else b""))

    def write(self, trained: Trained) -> Path:
        """The next delta; or the base, where there is none, or where so many rows went that their keys are not known.

        Returns its directory. Raises as export_model; nothing of it stays then.
        """
        with self._together() as together:
            if self.chain is None or self._needs_base(together):
                path = self.directory / BASE
                chain = self._write_base(path, trained)
            else:
                path = self._named(self.chain.number + 1)
                chain = self._write_next(path, self.chain, trained, together)
            chain = msgspec.json.decode(together.hear_first(msgspec.json.encode(chain)), type=Chain)
        self._has(chain)
        return path

    def _has(self, chain: Chain) -> None:
        """In this order: cut short in between, the next delta has rows that were sent, and not the other way round."""
        self.chain = chain
        self._store.mark_sent()

    def _write_next(self, path: Path, chain: Chain, trained: Trained, together: Together) -> Chain:
        """What it makes of the chain, which rank 0 knows."""
        gathered = Gathered(self._peers, together)
        if not together.is_first:
            for name in self._store.tables:
                deque(_Changed(self._store, name, gathered), maxlen=0)  # sends them
            return chain
        with writing(path):
            written = beside(path)
        try:
            delta = self._write_delta(written, chain, trained, gathered)
            with writing(path):
                sync_all(written)
                put_in_place(written, path)
        except BaseException:
            shutil.rmtree(written, ignore_errors=True)
            raise
        return chain.followed_by(delta)

    def _write_base(self, path: Path, trained: Trained) -> Chain:
        """What it begins, which rank 0 knows."""
        chain = Chain(step=self._store.steps, ids=(uuid4().hex,))
        if self._peers.rank:
            export_model(path, trained, peers=self._peers)
            return chain
        if self.chain is not None:
            notice(f"{self.directory}: too many rows were removed to list them; the deltas begin anew, with a new base")
        with writing(path):
            written = beside(path)
        try:
            export_model(written, trained, chain=chain, program=self._program_of(trained), peers=self._peers)
            with writing(path):
                sync_all(written)
                for old in self.directory.iterdir():
                    if old.name.isdecimal():
                        shutil.rmtree(old)
                put_in_place(written, path)
                sync(self.directory.parent)
        except BaseException:
            shutil.rmtree(written, ignore_errors=True)
            raise
        return chain

    def _write_delta(self, folder: Path, chain: Chain, trained: Trained, gathered: Gathered) -> Delta:
        types = key_type_of_table(trained.run.schema)
        counts = {}
        paths = []
        for name, table in self._store.tables.items():
            columns = _Columns(table, types[name], trained.strings.get(name))
            changed = _Changed(self._store, name, gathered)
            paths.append(folder / rows_file(name))
            write_rows(paths[-1], table, columns.schema, map(columns.of_change, changed))
            counts[name] = changed.counts
        paths.append(save_program(self._program_of(trained), folder))
        delta = Delta(
            number=chain.number + 1,
            step=self._store.steps,
            base=chain.ids[0],
            after=chain.ids[-1],
            changed={name: changed for name, (changed, _) in counts.items()},
            removed={name: removed for name, (_, removed) in counts.items()},
            files=facts_of(paths),
        ).named()
        with writing(folder):
            write_delta(folder, delta)
        return delta

    @torch.no_grad()
    def _program_of(self, trained: Trained) -> torch.export.ExportedProgram:
        """The model as it is now; traced once."""
        if self._program is None:
            self._program = program_of(trained)
        else:
            for name, value in trained.model.state_dict().items():
                self._program.state_dict[name].copy_(value)
        return self._program

    def _named(self, number: int) -> Path:
        return self.directory / (f"{number:06}" if number else BASE)

    def _is_there(self, chain: Chain) -> bool:
        """Whether the base and the last delta are, and are whole."""
        try:
            base = msgspec.convert(read_facts(self.directory / BASE).get("chain"), Chain)
            last = read_delta(self._named(chain.number)).id if chain.number else base.ids[0]
        except (CheckpointError, msgspec.ValidationError):
            return False
        return (base.ids[0], last) == (chain.ids[0], chain.ids[-1])


class _Changed:
    """What a delta says of one table, of all ranks on rank 0, as it is asked for: rows, then keys that have none now.

    counts: rows changed, keys removed.
    """

    def __init__(self, store: Store, name: str, gathered: Gathered) -> None:
        self._store, self._name, self._gathered = store, name, gathered
        self.counts = [0, 0]

    def __iter__(self) -> Iterator[RowBlock | U64]:
        table = self._store.tables[self._name]
        for block in self._gathered.rows(table, self._store.unsent(self._name)):
            self.counts[0] += block.keys.size
            yield block
        if not table.dense:
            [gone] = self._gathered.keys((self._store.unsent_gone(self._name),))
            gone.sort()
            self.counts[1] = gone.size
            for begin in range(0, gone.size, 1 << 16):
                yield gone[begin : begin + (1 << 16)]


class _Columns:
    """How they look to others: the columns of an export, and `removed`."""

    def __init__(self, table: Table, key_type: str, texts: Mapping[int, str] | None) -> None:
        self._columns = Columns(table, key_type, texts)
        self.schema = self._columns.schema.append(pa.field("removed", pa.bool_()))

    def of_change(self, change: RowBlock | U64) -> pa.Table:
        if isinstance(change, RowBlock):
            removed = pa.array(np.zeros(change.keys.size, np.bool_))
            return self._columns.of(change).append_column("removed", removed)
        nulls = np.zeros(change.size, np.bool_)
        columns = self._columns.keys(change, nulls) | {"removed": pa.array(~nulls)}
        if "rare" in self.schema.names:
            columns["rare"] = pa.array(nulls)
        empty = {field.name: pa.nulls(change.size, field.type) for field in self.schema if field.name not in columns}
        return pa.Table.from_pydict(columns | empty, schema=self.schema)


def _own(table: str, unsent: Unsent, owns: Owns) -> Unsent:
    return Unsent(
        keys=unsent.keys[owns(table, unsent.keys)],
        beside=unsent.beside[owns(table, unsent.beside, is_null=True)],
        gone=unsent.gone[owns(table, unsent.gone)],
    )
