"""What of a checkpoint fits a run whose tables, their dims or optimizers, or whose model's parameters have changed.

Every part of the new run has a fate: restored (as it was), adapted (vectors and what is under the same rule; the rest
begins afresh), or fresh. What of the checkpoint has no place any more is ignored. All but restored is a surprise, and
refused unless it is allowed by name: "tables.item", "model.mlp.0.weight", "train.optimizer", or a pattern such as
"model.*". Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from sfctr.spec.errors import CheckpointError, SchemaError
from sfctr.spec.runfile import RunFile
from sfctr.spec.schema import key_type_of_table
from sfctr.spec.tables import Table
from sfctr.store import rules_of

Fate = Literal["restored", "adapted", "fresh", "ignored"]
Shapes = Mapping[str, tuple[int, ...]]
"""Of tensors of the dense part, by their names there (see dense.py)."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One table, parameter or optimizer. name: as `allow` takes it. why: of every fate but restored."""

    name: str
    fate: Fate
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Restore:
    """tables: the new run's stored tables whose rows are taken over, and whose of the checkpoint they are.

    parameters: names in the dense part, as the new run has them, that are taken over. optimizer: whether what the dense
    optimizer keeps of them is, too. renamed: saved table -> new one.
    """

    items: tuple[Item, ...]
    tables: Mapping[str, str]
    parameters: frozenset[str]
    optimizer: bool
    renamed: Mapping[str, str]

    def new_name(self, name: str) -> str:
        """A saved tensor's name now."""
        return _new_name(name, self.renamed)

    def lines(self) -> list[str]:
        """The report for a person: how much is restored, then a line for each part that is not."""
        counts = Counter(item.name.partition(".")[0] for item in self.items if item.fate == "restored")
        first = f"restored: {counts['tables']} tables, {counts['model']} tensors of the model"
        return [first, *(f"{item.fate}: {item.name} ({item.why})" for item in self.items if item.fate != "restored")]


def compare(
    saved: RunFile,
    now: RunFile,
    saved_shapes: Shapes,
    shapes: Shapes,
    *,
    allow: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Restore:
    """Both runs with all their tables. renamed: saved table -> its name now.

    Raises CheckpointError that names every difference which nothing in `allow` matches.
    """
    new_names = dict(renamed or {})
    saved_tables = {new_names.get(table.name, table.name): table for table in saved.tables}
    tables = list(_tables(saved, now, saved_tables, new_names))
    model = list(_parameters(saved_shapes, shapes))
    same_optimizer = type(saved.train.optimizer) is type(now.train.optimizer)
    items = (*tables, *model, *(() if same_optimizer else (_optimizer(saved, now),)))
    _refuse_surprises(items, allow)
    taken = {item.name.removeprefix("tables.") for item in tables if item.fate in ("restored", "adapted")}
    is_stored = {table.name for table in now.tables if not table.dense}
    return Restore(
        items=items,
        tables={name: saved_tables[name].name for name in sorted(taken & is_stored)},
        parameters=_parameters_taken(saved_shapes, shapes, taken, new_names),
        optimizer=same_optimizer,
        renamed=new_names,
    )


def _parameters_taken(saved: Shapes, now: Shapes, tables: set[str], new_names: Mapping[str, str]) -> frozenset[str]:
    known = {_new_name(name, new_names): shape for name, shape in saved.items()}
    fit = [name for name, shape in now.items() if known.get(name) == shape]
    return frozenset(name for name in fit if _table_of(name) is None or _table_of(name) in tables)


def _table_of(name: str) -> str | None:
    """The dense table whose tensor it is."""
    kind, _, rest = name.partition(".")
    return rest.rpartition(".")[0] if kind == "table" else None


def _new_name(name: str, new_names: Mapping[str, str]) -> str:
    table = _table_of(name)
    return name if table is None else f"table.{new_names.get(table, table)}.{name.rpartition('.')[2]}"


def _tables(
    saved: RunFile, now: RunFile, saved_tables: Mapping[str, Table], new_names: Mapping[str, str]
) -> Iterator[Item]:
    key_types, old_types = _key_types(now), _key_types(saved)
    for table in now.tables:
        name, old = f"tables.{table.name}", saved_tables.get(table.name)
        if old is None:
            yield Item(name=name, fate="fresh", why="the checkpoint has no such table")
            continue
        types = old_types.get(old.name), key_types.get(table.name)
        if why := _other_rows(old, table) or _other_keys(*types):
            yield Item(name=name, fate="fresh", why=why)
        elif why := _other_rules(old, table):
            yield Item(name=name, fate="adapted", why=why)
        else:
            yield Item(name=name, fate="restored")
    wanted = {table.name for table in now.tables}
    for table in saved.tables:
        if new_names.get(table.name, table.name) not in wanted:
            yield Item(name=f"tables.{table.name}", fate="ignored", why="the run has no such table")


def _key_types(run: RunFile) -> Mapping[str, str]:
    try:
        return key_type_of_table(run.schema)
    except SchemaError:  # a run that mixes them is refused elsewhere
        return {}


def _other_rows(old: Table, new: Table) -> str:
    """Why no row of the old table is one of the new; empty where they are."""
    rows = ("dense", "dim", "buckets", *(("num_rows",) if new.dense else ()))
    return _differing(old, new, rows)


def _other_keys(old: str | None, new: str | None) -> str:
    return f"its keys were {old} and are {new}" if None not in (old, new) and old != new else ""


def _other_rules(old: Table, new: Table) -> str:
    """Why a row has other parts, or a part another meaning."""
    if new.dense:
        had, has = old.linear is not None, new.linear is not None
        return "" if had == has else f"it {'had' if had else 'has now'} first-order weights"
    vector, linear = zip(rules_of(old), rules_of(new), strict=True)
    rules = [
        f"{what} was {was or 'none'} and is {now or 'none'}"
        for what, (was, now) in (("optimizer", vector), ("linear", linear))
        if was != now
    ]
    return ", ".join(filter(None, [_differing(old, new, ("dtype",)), *rules]))


def _differing(old: Table, new: Table, names: Sequence[str]) -> str:
    return ", ".join(
        f"{name} was {getattr(old, name)} and is {getattr(new, name)}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    )


def _parameters(saved: Shapes, now: Shapes) -> Iterator[Item]:
    old = {name: shape for name, shape in saved.items() if name.startswith("model.")}
    new = {name: shape for name, shape in now.items() if name.startswith("model.")}
    for name, shape in new.items():
        if name not in old:
            yield Item(name=name, fate="fresh", why="the checkpoint has no such tensor")
        elif old[name] != shape:
            yield Item(name=name, fate="fresh", why=f"its shape was {old[name]} and is {shape}")
        else:
            yield Item(name=name, fate="restored")
    for name in old.keys() - new.keys():
        yield Item(name=name, fate="ignored", why="the model has no such tensor")


def _optimizer(saved: RunFile, now: RunFile) -> Item:
    kinds = (type(run.train.optimizer).__name__ for run in (saved, now))
    return Item(name="train.optimizer", fate="fresh", why="it was {} and is {}".format(*kinds))


def _refuse_surprises(items: Sequence[Item], allow: Sequence[str]) -> None:
    surprises = [
        item
        for item in items
        if item.fate != "restored" and not any(fnmatchcase(item.name, pattern) for pattern in allow)
    ]
    if surprises:
        listed = "; ".join(f"{item.name} would be {item.fate} ({item.why})" for item in surprises)
        raise CheckpointError(
            f"the run differs from the one that the checkpoint is of: {listed}. Give the run file back what it had, or"
            f" allow by name: {', '.join(item.name for item in surprises)}"
        )
