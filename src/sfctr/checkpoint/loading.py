"""A checkpoint opened, and a run's parts filled from it; rows go into any tiers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sfctr.spec.dense_parts import DenseParts
from sfctr.spec.errors import CheckpointError, SchemaError
from sfctr.spec.owned import Owns
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file
from sfctr.spec.together import Together
from sfctr.store import Store

from .dense import join_fields, load_buffers, parameter_names, restore_optimizer
from .layout import layout_of
from .load_rows import load_rows
from .manifest import Manifest, check_file, check_files, read_manifest, read_text
from .own import own_membership, share_of
from .parts import read_clock, read_strings, read_waiting, stored, summed
from .random_states import restore_random_states
from .restore import Restore, compare


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were checked. run: that it is of. restore: what of it fits another run, see fitted()."""

    directory: Path
    manifest: Manifest
    run: RunFile
    restore: Restore | None = None

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.manifest.facts

    def files(self) -> Iterator[tuple[str, int, str]]:
        """Name and bytes of every file, and what is wrong with it ("" where it is sound); reads each."""
        for name, facts in self.manifest.files.items():
            try:
                check_file(self.directory / name, facts)
            except CheckpointError as error:
                yield name, facts.bytes, str(error)
            else:
                yield name, facts.bytes, ""

    @cached_property
    def trainer(self) -> Any:
        """The trainer's plain data."""
        return self._state["trainer"]

    @cached_property
    def trainer_tensors(self) -> dict[str, Tensor]:
        """What the trainer kept in tensors."""
        return self._tensors("trainer.")

    def fitted(
        self,
        run: RunFile,
        model: nn.Module,
        store: Store,
        *,
        allow: tuple[str, ...] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> Checkpoint:
        """The same for another run: where it differs, what is loaded is what fits (see restore.py).

        Raises CheckpointError for a difference that `allow` does not name.
        """
        shapes = {name: tuple(value.shape) for name, value in self._dense.items()}
        wanted = {f"model.{name}": tuple(value.shape) for name, value in model.state_dict().items()}
        wanted |= {f"table.{name}": tuple(value.shape) for name, value in store.dense_state().items()}
        restore = compare(self.run, run, shapes, wanted, allow=allow, renamed=renamed or {})
        return Checkpoint(self.directory, self.manifest, self.run, restore)

    def load_store(self, store: Store, owns: Owns | None = None, peers: Peers = ALONE) -> None:
        """All rows with their state, dense tables, the count of steps, and who waits for a row, into a store that has
        no rows yet. Raises CheckpointError for a damaged file, CapacityError and DiskError as the store does.

        owns: which rows and waiting keys this rank takes, by the names of the store's tables; None: all. peers: all
        ranks, who load it between them and count its rows together.
        """
        with Together(peers, "checkpoint") as together:
            self._load_rows(store, owns)
            self._check_num_rows(store, together)

    def _load_rows(self, store: Store, owns: Owns | None) -> None:
        if self.restore is None and tuple(layout_of(group) for group in store.groups) != self.manifest.groups:
            raise CheckpointError(
                f"{self.directory} has rows of other tables, or under other rules, than the store; open it with the run"
                " file it was saved with, or take over what fits (Checkpoint.fitted)"
            )
        store.restore_clock(self.step, read_clock(self.directory))
        sources = self._sources(store)
        for name, source in sources.items():
            if not store.tables[name].dense:
                store.reserve(name, share_of(self.manifest.num_rows[source], name, owns))
        load_rows(self.directory, self.manifest, store, {source: name for name, source in sources.items()}, owns)
        saved = {table.name: (number, table) for number, table in enumerate(stored(self.run.tables))}
        for name, source in sources.items():
            if source in saved and saved[source][1].has_membership and store.tables[name].has_membership:
                counters = self.manifest.membership.get(source, {})
                waiting = read_waiting(self.directory, self.manifest.files, saved[source][0])
                store.restore_membership(name, *own_membership(name, counters, waiting, owns))
        self._load_dense_tables(store)

    def _sources(self, store: Store) -> Mapping[str, str]:
        """The store's tables whose rows are taken over, and whose of the checkpoint they are."""
        return {name: name for name in store.tables} if self.restore is None else self.restore.tables

    def _load_dense_tables(self, store: Store) -> None:
        tensors = _fitting(self._tensors("table."), self.restore, "table.")
        try:
            store.load_dense_state(tensors if self.restore is None else {**store.dense_state(), **tensors})
        except SchemaError as error:
            raise CheckpointError(f"{self.directory}: what was saved does not fit: {error}") from None

    def _check_num_rows(self, store: Store, together: Together) -> None:
        """All ranks have as many rows as the manifest says."""
        sources = {name: source for name, source in self._sources(store).items() if not store.tables[name].dense}
        mine = json.dumps({name: store.num_rows(name) for name in sources}).encode()
        found = summed(json.loads(said) for said in together.say(mine))
        for name, source in sources.items():
            needed = self.manifest.num_rows[source]
            if found[name] != needed:
                raise CheckpointError(
                    f"{self.directory}: {found[name]:,} rows of table '{name}' were found, and the manifest says"
                    f" {needed:,}; the checkpoint is damaged, use another one (or the store had rows before)"
                )

    def load_model(self, model: nn.Module) -> None:
        """Raises CheckpointError where the module's parameters differ from what was saved."""
        _load(model, self._tensors("model."), self.restore, "model.", self.directory)
        load_buffers(model, self._tensors("buffer."))

    def load_optimizer(
        self,
        optimizer: torch.optim.Optimizer | None,
        model: nn.Module,
        store: Store,
        parts: DenseParts | None = None,
    ) -> None:
        """What the optimizer keeps of each parameter; its options are those it was made with. parts: what this rank has
        of them, where that is not all."""
        if optimizer is None or (self.restore is not None and not self.restore.optimizer):
            return
        fields = join_fields(self._tensors("optimizer."), self._state["optimizer"])
        if self.restore is not None:
            fields = {self.restore.new_name(name): values for name, values in fields.items()}
            fields = {name: values for name, values in fields.items() if name in self.restore.parameters}
        restore_optimizer(optimizer, parameter_names(model, store, parts), fields, parts)

    def restore_random_states(self) -> None:
        """Have torch, NumPy and Python draw what they would have drawn next."""
        restore_random_states(self._tensors("random."))

    def strings(self) -> dict[str, dict[int, str]]:
        """Table -> key -> text of hashed keys, for tables that keep it."""
        return read_strings(self.directory, self.manifest.files, self.run.tables)

    def _tensors(self, front: str) -> dict[str, Tensor]:
        return {name.removeprefix(front): value for name, value in self._dense.items() if name.startswith(front)}

    @cached_property
    def _dense(self) -> dict[str, Tensor]:
        try:
            return load_file(self.directory / "dense.safetensors")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.directory}/dense.safetensors is damaged ({error})") from None

    @cached_property
    def _state(self) -> Any:
        return read_text(self.directory / "state.json", json.loads)


def open_checkpoint(directory: Path, *, is_checked: bool = False, peers: Peers = ALONE) -> Checkpoint:
    """The checkpoint in `directory`, every file of it read and checked, unless CheckpointDirectory.newest() just did.

    peers: all ranks, who open it together; rank 0 checks it. Raises CheckpointError where a file is missing or damaged.
    """
    with Together(peers, "checkpoint") as together:
        return _opened(directory, checks_files=together.is_first and not is_checked)


def _opened(directory: Path, *, checks_files: bool) -> Checkpoint:
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: there is no checkpoint; give a directory such as RUN/checkpoints/step-...")
    manifest = read_manifest(directory)
    if checks_files:
        check_files(directory, manifest.files)
    run = read_text(directory / "run.toml", lambda text: decode_run_file(text, str(directory / "run.toml")))
    return Checkpoint(directory, manifest, run)


def _fitting(tensors: dict[str, Tensor], restore: Restore | None, front: str) -> dict[str, Tensor]:
    """Those that are taken over, under their new names; all where nothing differs."""
    if restore is None:
        return tensors
    named = {restore.new_name(front + name).removeprefix(front): value for name, value in tensors.items()}
    return {name: value for name, value in named.items() if front + name in restore.parameters}


def _load(module: nn.Module, tensors: dict[str, Tensor], restore: Restore | None, front: str, directory: Path) -> None:
    try:
        module.load_state_dict(_fitting(tensors, restore, front), strict=restore is None)
    except RuntimeError as error:
        words = " ".join(str(error).split())
        raise CheckpointError(f"{directory}: what was saved does not fit {type(module).__name__}: {words}") from None
