"""Deltas: what changed of a run's rows since a base, in numbered directories that follow each other.

  base/      a full export, see bundle.py
  000001/    rows changed and keys removed since the base, the dense part, and delta.json, written last
  000002/    the same since 000001; and so on

Each is complete or absent: written beside, synced and renamed. What cannot be written raises, and the next delta has it
again: rows count as sent only when they lie there. docs/format/deltas.md says it in full.
"""

from __future__ import annotations

import shutil
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
from sfctr.spec.schema import key_type_of_table
from sfctr.store import Store, Unsent
from sfctr.telemetry import notice

from .bundle import Trained, export_model, program_of, save_program
from .chain import Chain, Delta, read_delta, write_delta
from .files import facts_of, read_facts, rows_file
from .rows import Columns, write_rows

BASE = "base"


class Deltas:
    """The deltas in `directory`, of the rows in `store`. begin() or go_on() comes first. Between two steps."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory, self._store = directory, store
        self.chain: Chain | None = None
        self._program: torch.export.ExportedProgram | None = None

    def begin(self) -> None:
        """Without a base: what lies there, of a course that the run has left, is taken away."""
        self.chain = None
        with writing(self.directory):
            shutil.rmtree(self.directory, ignore_errors=True)

    def go_on(self, chain: Chain, unsent: Mapping[str, Unsent]) -> None:
        """With what was so when a checkpoint was taken, and a store that holds its rows.

        Later deltas are taken away: they are written again, with the same ids if the run goes the same way. Where the
        base, or the last delta, is not there any more it begins anew, said aloud.
        """
        if not self._is_there(chain):
            notice(
                f"{self.directory} does not hold what the deltas of this run go on from: they begin anew, with a new"
                " base"
            )
            self.begin()
            return
        with writing(self.directory):
            for path in self.directory.iterdir():
                if path != self.directory / BASE and not (path.name.isdecimal() and int(path.name) <= chain.number):
                    shutil.rmtree(path)
        self.chain = chain
        self._store.mark_sent()
        for table, keys in unsent.items():
            self._store.mark_unsent(table, keys)

    def unsent(self) -> dict[str, Unsent]:
        """By table that is not dense, what go_on() needs; empty without a base."""
        if self.chain is None or self._store.needs_base():
            return {}
        return {name: self._store.unsent_keys(name) for name, table in self._store.tables.items() if not table.dense}

    def write(self, trained: Trained) -> Path:
        """The next delta; or the base, where there is none, or where so many rows went that their keys are not known.

        Returns its directory. Raises as export_model; nothing of it stays then.
        """
        if self.chain is None or self._store.needs_base():
            return self._write_base(trained)
        number = self.chain.number + 1
        path = self._named(number)
        written = beside(path)
        try:
            delta = self._write_delta(written, number, trained)
            with writing(path):
                sync_all(written)
                put_in_place(written, path)
        except BaseException:
            shutil.rmtree(written, ignore_errors=True)
            raise
        self._has(self.chain.followed_by(delta))
        return path

    def _write_base(self, trained: Trained) -> Path:
        if self.chain is not None:
            notice(f"{self.directory}: too many rows were removed to list them; the deltas begin anew, with a new base")
        path, chain = self.directory / BASE, Chain(step=self._store.steps, ids=(uuid4().hex,))
        with writing(path):
            written = beside(path)
        try:
            export_model(written, trained, chain=chain, program=self._program_of(trained))
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
        self._has(chain)
        return path

    def _has(self, chain: Chain) -> None:
        """In this order: cut short in between, the next delta has rows that were sent, and not the other way round."""
        self.chain = chain
        self._store.mark_sent()

    def _write_delta(self, folder: Path, number: int, trained: Trained) -> Delta:
        assert self.chain is not None
        types = key_type_of_table(trained.run.schema)
        counts = {}
        paths = []
        for name, table in self._store.tables.items():
            columns = Columns(table, types[name], trained.strings.get(name))
            rows = _Counted(self._store, name, columns)
            paths.append(folder / rows_file(name))
            write_rows(paths[-1], table, rows.schema, rows)
            counts[name] = rows.counts
        paths.append(save_program(self._program_of(trained), folder))
        delta = Delta(
            number=number,
            step=self._store.steps,
            base=self.chain.ids[0],
            after=self.chain.ids[-1],
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


class _Counted:
    """What a delta says of one table, as it is asked for; counts: rows changed, keys removed."""

    def __init__(self, store: Store, name: str, columns: Columns) -> None:
        self._store, self._name, self._columns = store, name, columns
        self.schema = columns.schema.append(pa.field("removed", pa.bool_()))
        self.counts = [0, 0]

    def __iter__(self) -> Iterator[pa.Table]:
        for block in self._store.unsent(self._name):
            self.counts[0] += block.keys.size
            yield self._columns.of(block).append_column("removed", pa.array(np.zeros(block.keys.size, np.bool_)))
        if not self._store.tables[self._name].dense:
            gone = self._store.unsent_gone(self._name)
            self.counts[1] = gone.size
            for begin in range(0, gone.size, 1 << 16):
                yield self._removed(gone[begin : begin + (1 << 16)])

    def _removed(self, keys: U64) -> pa.Table:
        nulls = np.zeros(keys.size, np.bool_)
        columns = self._columns.keys(keys, nulls) | {"removed": pa.array(~nulls)}
        if "rare" in self.schema.names:
            columns["rare"] = pa.array(nulls)
        empty = {field.name: pa.nulls(keys.size, field.type) for field in self.schema if field.name not in columns}
        return pa.Table.from_pydict(columns | empty, schema=self.schema)
