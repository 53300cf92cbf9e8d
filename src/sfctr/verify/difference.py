"""Names where two outcomes differ in their last step: what was read, what was predicted, what was written. Pure.

B rows of the batch, N keys of a feature
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfctr.spec.batch import Bools, Keys
from sfctr.spec.runfile import RunFile
from sfctr.spec.schema import KeyedFeature, key_type_of_table

from .compare import Place, Rule, first_step_at_odds, same_keys
from .outcome import Floats, Outcome, TableRows
from .reference_rows import table_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A place at which an outcome is not as expected. Prints itself as a sentence.

    step: from 1; 0 where there was none. field: of the row, or what else differs. table, key: of the row; None where it
    is no row's.
    """

    step: int
    field: str
    what: str
    table: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"step {self.step}: {self.what}" if self.step else self.what


def last_difference(found: Outcome, expected: Outcome, rule: Rule, run: RunFile) -> Difference | None:
    """What differs in the last step of two outcomes whose steps before it agree; None where nothing does.

    What the step read comes first, for all else follows from it; then what it predicted, and what it left behind.
    """
    if found.steps != expected.steps:
        what = f"the run ends after it, not after {expected.steps} steps"
        return Difference(step=found.steps, field="step", what=what)
    sides = _Sides(found, expected, rule, run)
    return sides.read() or sides.predicted() or sides.written() or sides.others()


def any_difference(found: Outcome, expected: Outcome, rule: Rule, run: RunFile) -> Difference | None:
    """The first prediction that differs, else a row, else the rest; None where nothing differs."""
    if first_step_at_odds(found, expected, rule) is None:
        return None
    sides = _Sides(found, expected, rule, run)
    return sides.predicted() or sides.written() or sides.others() or last_difference(found, expected, rule, run)


class _Sides:
    def __init__(self, found: Outcome, expected: Outcome, rule: Rule, run: RunFile) -> None:
        self.found, self.expected, self.rule, self.run = found, expected, rule, run

    def read(self) -> Difference | None:
        """What the model was given in the last step."""
        for name, found in self.found.inputs.items():
            expected = self.expected.inputs[name]
            wrong = self.rule.wrong(Place("input", name), found, expected)
            if wrong.any():
                return self._read(name, wrong, _values(found, expected, first(wrong)))
        return None

    def _read(self, name: str, wrong: Bools, values: str) -> Difference:
        entries = {f.name: (f, "vector") for f in self.run.schema.keyed}
        entries |= {f"{f.name}.linear": (f, "linear") for f in self.run.schema.keyed}
        if name not in entries:
            return self._difference(name, f"input '{name}' of row {first(wrong)[0]} of the batch is {values}")
        feature, field = entries[name]
        marked: Bools = np.asarray(wrong.reshape(len(wrong), -1).any(axis=1))
        where = f"feature '{feature.name}' read {field} {values}"
        found = culprit(self.expected.batch.keys[feature.name], marked)
        if found is None:
            return self._difference(
                field, f"{where} in row {int(np.argmax(marked))} of the batch, which looks up no key"
            )
        null, key = found
        key = key if null else self._table_key(feature, key)
        return self._of_row(feature.table_name, null, key, field, where)

    def written(self) -> Difference | None:
        """Rows as they are after the last step."""
        for table, expected in self.expected.rows.items():
            found = self.found.rows[table]
            if not same_keys(found, expected):
                extra, (null, key) = odd_row(found, expected)
                return self._of_row(table, null, key, "row", "is there and should not be" if extra else "is missing")
            wrong = {
                field: self.rule.wrong(Place("row", table, field), found.fields[field], values)
                for field, values in expected.fields.items()
            }
            at = first_row(wrong)
            if at is not None:
                field, n = at
                place = (n, int(np.argmax(wrong[field][n])))
                values = _values(found.fields[field], expected.fields[field], place)
                where = f"{field}[{place[1]}] became {values}"
                return self._of_row(table, bool(expected.nulls[n]), int(expected.keys[n]), field, where)
        return None

    def predicted(self) -> Difference | None:
        """A logit of any step."""
        for step, (found, expected) in enumerate(zip(self.found.logits, self.expected.logits, strict=False), 1):
            wrong = self.rule.wrong(Place("logit", step=step), found, expected)
            if wrong.any():
                at = first(wrong)
                what = f"logit of row {at[0]} of the batch is {_values(found, expected, at)}"
                return Difference(step=step, field="logit", what=what)
        return None

    def others(self) -> Difference | None:
        """Values of the dense part after the last step."""
        for name, found in self.found.dense.items():
            expected = self.expected.dense[name]
            wrong = self.rule.wrong(Place("dense", name), found, expected)
            if wrong.any():
                at = first(wrong)
                inside = "".join(f"[{i}]" for i in at)
                return self._difference(name, f"{name}{inside} became {_values(found, expected, at)}")
        return None

    def _of_row(self, table: str, null: bool, key: int, field: str, where: str) -> Difference:
        named = "the row of a missing value" if null else self._key_text(table, key)
        return self._difference(field, f"table '{table}', {named}: {where}", table, named)

    def _difference(self, field: str, what: str, table: str | None = None, key: str | None = None) -> Difference:
        return Difference(step=self.expected.steps, field=field, what=what, table=table, key=key)

    def _table_key(self, feature: KeyedFeature, key: int) -> int:
        table = next(t for t in self.run.tables if t.name == feature.table_name)
        return int(table_keys(table, np.array([key], dtype=np.uint64))[0])

    def _key_text(self, table: str, key: int) -> str:
        if any(t.buckets is not None for t in self.run.tables if t.name == table):
            return f"bucket {key}"
        kind = key_type_of_table(self.run.schema)[table]
        if kind == "string":
            return f"key {key:#018x} (the hash of a text)"
        return f"key {key - 2**64 if kind == 'int64' and key >= 2**63 else key}"


def culprit(keys: Keys, wrong: Bools) -> tuple[bool, int] | None:
    """(is missing, key) of a row that explains why the batch rows marked in `wrong` [B] differ: one that the first of
    them looks up, and that no unmarked row does if there is such a one. None where they look up nothing."""
    lengths = np.ones(len(wrong), dtype=np.int64) if keys.offsets is None else np.diff(keys.offsets)
    marked = np.repeat(wrong, lengths)
    nulls = np.zeros(keys.keys.size, dtype=np.bool_) if keys.nulls is None else keys.nulls != 0
    pairs = list(zip(nulls.tolist(), keys.keys.tolist(), strict=True))
    cleared = {pair for pair, mark in zip(pairs, marked, strict=True) if not mark}
    suspects = [pair for pair, mark in zip(pairs, marked, strict=True) if mark]
    return next((pair for pair in suspects if pair not in cleared), suspects[0] if suspects else None)


def odd_row(found: TableRows, expected: TableRows) -> tuple[bool, tuple[bool, int]]:
    """The first row that only one side has: whether it is `found`, and (is missing, key)."""
    ours, theirs = (set(zip(rows.nulls.tolist(), rows.keys.tolist(), strict=True)) for rows in (found, expected))
    odd = min(ours ^ theirs)
    return odd in ours, odd


def first_row(wrong: dict[str, Bools]) -> tuple[str, int] | None:
    """The field and the number of the first row that is marked in any field."""
    hits = {field: int(np.argmax(marks.any(axis=1))) for field, marks in wrong.items() if marks.any()}
    return min(hits.items(), key=lambda hit: hit[1], default=None)


def first(wrong: Bools) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))


def _values(found: Floats, expected: Floats, at: tuple[int, ...]) -> str:
    """As the shortest decimals that name these floats."""
    return f"{found[at]!s}, not {expected[at]!s}"
