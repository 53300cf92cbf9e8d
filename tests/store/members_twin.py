"""A slow, obvious twin of membership: after every committed step all rows are looked at, and those that must go go.

It stands on the twin of the rows (numpy_twin.py) and adds who has one. Rows that are stale leave at once here, and keys
are sorted wherever the oldest is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy_twin
from numpy_twin import Feature, Step, mix

COUNTERS = ("admitted", "refused", "expired", "removed", "withdrawn", "forgotten")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The arguments of native MembershipRule."""

    capacity: int = 0
    admit_after: int = 1
    expire_after_steps: int = 0
    expire_after_ns: int = 0
    rare: bool = False
    most_waiting: int = 65536


def shares(bound: int) -> list[int]:
    """How many keys of each shard there may be."""
    bits = max(k for k in range(9) if k == 0 or bound / 2**k >= 64)
    return [bound // 2**bits + (s < bound % 2**bits) for s in range(2**bits)]


def surplus(bound: int, keys: dict[int, int]) -> list[int]:
    """Of keys with the steps they were last seen in, those beyond a bound."""
    gone: list[int] = []
    if bound == 0:
        return gone
    each = shares(bound)
    for shard, share in enumerate(each):
        mine = [k for k in keys if mix(k) * len(each) >> 64 == shard]
        mine.sort(key=lambda k: (keys[k], mix(k)))
        gone += mine[: max(0, len(mine) - share)]
    return gone


@dataclass
class Members:
    """Of one table: steps that trained each row last, and keys that wait with (count, last step)."""

    rule: Rule
    last: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))


@dataclass
class Settled(Step):
    """A step, with the ids that its gradients go to, and the refused keys that backward reached."""

    trained_ids: list[np.ndarray] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)


class Group(numpy_twin.Group):
    def __init__(
        self,
        dim: int,
        vector_rule: str,
        linear_rule: str | None,
        tables: Sequence[numpy_twin.Table],
        rules: Sequence[Rule],
    ) -> None:
        super().__init__(dim, vector_rule, linear_rule, tables)
        self.members = [Members(rule) for rule in rules]
        self.step = 0
        self.now: list[int | None] = [None]
        """After each step."""

    def locate(self, features: Sequence[Feature], *, train: bool) -> Settled:
        keys = self._unique(features)
        number = {key: u for u, key in enumerate(keys)}
        ids = [np.array([number[f.key(n)] for n in range(len(f.keys))], dtype=np.int32) for f in features]
        refused = {u for u, key in enumerate(keys) if train and key not in self.rows and not self._admits(*key)}
        fresh = [train and key not in self.rows and u not in refused for u, key in enumerate(keys)]
        records = [self.rows[key] if key in self.rows else self.initial(*key) for key in keys]
        for u, (table, key) in enumerate(keys):
            if (table, key) in self.rows or fresh[u]:
                continue
            has_rare = self.members[table // 2].rule.rare and table % 2 == 0
            rare = number.get((table + 1, 1)) if has_rare else None
            known = rare is not None and (train or (table + 1, 1) in self.rows)
            records[u] = records[rare] if known else np.zeros(self.record_floats, np.float32)
        trained = [row.copy() for row in ids]
        for row in trained:
            for n, u in enumerate(row):
                if u in refused and self.members[keys[u][0] // 2].rule.rare:
                    row[n] = number[keys[u][0] + 1, 1]
        return Settled(features, keys, ids, records, fresh, trained_ids=trained, refused=refused)

    def _unique(self, features: Sequence[Feature]) -> list[tuple[int, int]]:
        keys, _ = numpy_twin.unique(len(self.tables), features)
        rare = [(2 * t + 1, 1) for t, members in enumerate(self.members) if members.rule.rare]
        return [key for n in range(2 * len(self.tables)) for key in (*keys, *rare) if key[0] == n]

    def _admits(self, table: int, key: int) -> bool:
        if table % 2 == 1:
            return True
        members = self.members[table // 2]
        return members.waiting.get(key, (0, 0))[0] + 1 >= members.rule.admit_after

    def backward(self, step, begin, end, grads, linear_grads):  # type: ignore[no-untyped-def]
        super().backward(replace(step, ids=step.trained_ids), begin, end, grads, linear_grads)
        for u in step.refused:
            found = [step.vectors.pop(u, None), step.linear.pop(u, None)]
            if any(each is not None for each in found):
                step.seen.add(u)
        for f, feature in enumerate(step.features):
            if grads[f] is None and (not linear_grads or linear_grads[f] is None):
                continue
            reached = {int(step.ids[f][n]) for b in range(begin, end) for n in feature.positions(b)}
            step.seen |= reached & step.refused

    def update(self, step, number, scale, hyper, linear_hyper, time=None):  # type: ignore[no-untyped-def]
        super().update(step, number, scale, hyper, linear_hyper)
        self.step = number
        known = [each for each in (*self.now, time) if each is not None]
        self.now.append(max(known, default=None))
        for u, (table, key) in enumerate(step.keys):
            members = self.members[table // 2]
            if u in step.seen:
                members.counters["refused"] += 1
                members.waiting[key] = (members.waiting.get(key, (0, 0))[0] + 1, number)
            elif table % 2 == 0 and (u in step.vectors or u in step.linear):
                members.counters["admitted"] += key not in members.last
                members.last[key] = number
                members.waiting.pop(key, None)
        for t, members in enumerate(self.members):
            self._remove(
                t, [key for key, last in members.last.items() if self._is_stale(members.rule, last)], "expired"
            )
            self._remove(t, surplus(members.rule.capacity, members.last), "removed")
            seen = {key: last for key, (_, last) in members.waiting.items()}
            for key in surplus(members.rule.most_waiting, seen):
                del members.waiting[key]
                members.counters["forgotten"] += 1

    def _is_stale(self, rule: Rule, last: int) -> bool:
        if rule.expire_after_steps:
            return self.step + 1 > last + rule.expire_after_steps
        now = self.now[-1]
        if not rule.expire_after_ns or now is None:
            return False
        then = next(each for each in self.now[last:] if each is not None)
        return now - then > rule.expire_after_ns

    def _remove(self, t: int, keys: Sequence[int], why: str) -> None:
        members = self.members[t]
        for key in keys:
            del self.rows[2 * t, key], members.last[key]
            members.counters[why] += 1

    def withdraw(self, t: int, keys: Sequence[int]) -> int:
        members = self.members[t]
        for key in keys:
            members.waiting.pop(key, None)
        held = [key for key in dict.fromkeys(keys) if key in members.last]
        self._remove(t, held, "withdrawn")
        return len(held)
