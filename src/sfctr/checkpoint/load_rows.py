"""Rows of a checkpoint into a store, the newest file of each group first.

A key that a newer file has, as a row or as a tombstone, is skipped in older ones. The store itself knows the first; the
second are kept sorted, 8 bytes a key, for the length of a load. So the store never holds more rows than it will.

  n rows of a block, R floats of a record, as the store has it
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from sfctr.spec.batch import F32, U64, Bools
from sfctr.spec.errors import CheckpointError
from sfctr.spec.owned import Owns
from sfctr.store import Group, Store, narrow, widen

from .layout import RecordLayout, layout_of
from .manifest import Manifest, rows_names
from .rows_file import Header, Rows, RowsFile, Tombstones


def load_rows(
    directory: Path, manifest: Manifest, store: Store, targets: Mapping[str, str], owns: Owns | None = None
) -> None:
    """targets: saved table -> the store's, for those that are wanted; the store has no rows of these yet. owns: of the
    store's tables, which rows are loaded; None: all.

    Where the record of a table is laid out anew, parts under the same rule are taken over and the others begin afresh.
    """
    for number, layout in enumerate(manifest.groups):
        gone: dict[int, U64] = {}
        for position in reversed(range(len(manifest.chain))):
            load = _Load(store, layout, targets, gone, owns, is_newest=position == len(manifest.chain) - 1)
            for name in rows_names(manifest.files, number, position):
                with closing(RowsFile(directory / name)) as file:
                    _check_header(file, manifest, position, layout)
                    for block in file.blocks(load.chosen):
                        load.take(block)
            gone = load.gone_by_now()


def _check_header(file: RowsFile, manifest: Manifest, position: int, layout: RecordLayout) -> None:
    since = None if position == 0 else manifest.chain[position - 1]
    needed = Header(step=manifest.chain[position], since=since, layout=layout)
    if file.header != needed:
        raise CheckpointError(
            f"{file.path}: {file.header} was found where the manifest says {needed}; the checkpoint is damaged, use"
            " another one"
        )


class _Load:
    """The blocks of one position of the chain into the store. gone: by space, keys that newer files have as tombstones,
    sorted."""

    def __init__(
        self,
        store: Store,
        layout: RecordLayout,
        targets: Mapping[str, str],
        gone: dict[int, U64],
        owns: Owns | None,
        *,
        is_newest: bool,
    ) -> None:
        self._store, self._layout, self._gone, self._owns, self._is_newest = store, layout, gone, owns, is_newest
        known = {name for name, table in store.tables.items() if not table.dense}
        wanted = [targets.get(table) for table in layout.tables]
        self._targets = [name if name in known else None for name in wanted]
        self._removed: dict[int, list[U64]] = {}

    def chosen(self, space: int, keys: U64) -> Bools:
        target = self._targets[space // 2]
        if target is None or self._owns is None:
            return np.full(keys.size, target is not None)
        return self._owns(target, keys, is_null=space % 2 == 1)

    def take(self, block: Rows | Tombstones) -> None:
        target = self._targets[block.space // 2]
        if target is None:
            return
        if isinstance(block, Tombstones):
            self._removed.setdefault(block.space, []).append(block.keys)
            return
        rows = block if block.space not in self._gone else block.only(_is_left(block.keys, self._gone[block.space]))
        group, place = self._store.group_of(target)
        records = _as_laid_out(self._layout, group, 2 * place + block.space % 2, rows)
        self._store.load_records(
            target, rows.keys, records, rows.last, is_null=block.space % 2 == 1, only_new=not self._is_newest
        )

    def gone_by_now(self) -> dict[int, U64]:
        """Tombstones of this position and those that are newer."""
        gone = dict(self._gone)
        for space, keys in self._removed.items():
            gone[space] = np.unique(np.concatenate([*keys, *([gone[space]] if space in gone else [])]))
        return gone


def _is_left(keys: U64, gone: U64) -> Bools:
    """[n]: which keys are not in `gone`, which is sorted and not empty."""
    at = np.minimum(np.searchsorted(gone, keys), gone.size - 1)
    is_left: Bools = gone[at] != keys
    return is_left


def _as_laid_out(saved: RecordLayout, group: Group, space: int, rows: Rows) -> F32:
    """The records as the group has them."""
    now = layout_of(group)
    if (now.parts, now.dtype, now.vector_rule, now.linear_rule) == (
        saved.parts,
        saved.dtype,
        saved.vector_rule,
        saved.linear_rule,
    ):
        return rows.records
    fresh = np.empty((rows.keys.size, now.record_floats), dtype=np.float32)
    group.native.initial_records(space, rows.keys, fresh)
    begin, length = now.parts["vector"]
    fresh[:, begin : begin + length] = narrow(
        widen(_part(saved, "vector", rows.records), saved.dim, saved.dtype), now.dtype
    )
    for part, is_same in (
        ("linear", None not in (saved.linear_rule, now.linear_rule)),
        ("vector_state", saved.vector_rule == now.vector_rule),
        ("linear_state", saved.linear_rule == now.linear_rule),
    ):
        if is_same:
            begin, length = now.parts[part]
            fresh[:, begin : begin + length] = _part(saved, part, rows.records)
    return fresh


def _part(layout: RecordLayout, part: str, records: F32) -> F32:
    begin, length = layout.parts[part]
    return records[:, begin : begin + length]
