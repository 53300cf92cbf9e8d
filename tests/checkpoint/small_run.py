"""A run of a few rows that can be trained step by step, and the snapshot's slow, obvious twin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import sfctr
from sfctr.checkpoint import TrainingState
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Data, RunFile

TABLES = (
    sfctr.Table("item", dim=3, linear=sfctr.FTRL(lr=0.1)),
    sfctr.Table("shop", dim=3, linear=sfctr.FTRL(lr=0.1)),
    sfctr.Table("user", dim=2, capacity=24, admit_after=2, unseen="rare", expire_after="2d"),
    sfctr.Table("tag", dim=5, dtype="bf16", optimizer=sfctr.Adagrad(lr=0.1)),
    sfctr.Table("hour", dim=2, dense=True, num_rows=24),
)
SCHEMA = sfctr.Schema(
    label="y", features=[sfctr.Categorical(t.name, dtype="int64") for t in TABLES], time=sfctr.TimeColumn("at")
)
RUN = RunFile(data=Data(train=("x.csv",)), schema=SCHEMA, tables=TABLES)


def batches(begin: int, end: int) -> Iterator[Batch]:
    """Of a skewed and drifting stream, half a day each."""
    for number in range(end):
        random = np.random.default_rng(number)
        keys = {t.name: (random.zipf(1.4, 30) % 40 + number).astype(np.uint64) for t in TABLES}
        keys["hour"] %= np.uint64(24)
        nulls = (random.random(30) < 0.1).astype(np.uint8)
        if number >= begin:
            yield Batch(
                size=30,
                keys={name: Keys(keys=np.where(nulls, np.uint64(0), k), nulls=nulls) for name, k in keys.items()},
                labels=np.zeros((30, 1), np.float32),
                label_mask=np.ones((30, 1), np.bool_),
                rows=np.arange(30),
                time=np.full(30, number * 43200 * 10**9),
            )


class SmallRun:
    """Store, model and optimizer, and where in the stream they are."""

    def __init__(self, run=RUN, tiers=None) -> None:
        self.run = run
        self.store = sfctr.Store(run.tables, seed=5, tiers=tiers or sfctr.Tiers())
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(i, o) for i, o in ((2, 4), (4, 4), (4, 4), (4, 1))))
        self.model[2].weight = self.model[1].weight
        parameters = [*self.model.parameters(), *self.store.dense_parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=0.01, fused=True)

    def train(self, end: int) -> None:
        """Until `end` steps are done."""
        for ready in sfctr.Lookahead(batches(self.store.steps, end), self.store, schema=self.run.schema, window=2):
            features = ready.features()
            out = self.model(features["hour"] + torch.rand(1) + np.random.random())
            (out.square().mean() + sum((value**2).sum() + value.sum() for value in features.values())).backward()
            ready.step(self.optimizer)

    def state(self, **more) -> TrainingState:
        return TrainingState(run=self.run, store=self.store, model=self.model, optimizer=self.optimizer, **more)

    def contents(self) -> dict:
        """Every number that training changes, in bytes."""
        found = {("membership",): repr(self.store.membership()), ("steps",): self.store.steps}
        found |= {("model", name): value.numpy().tobytes() for name, value in self.model.state_dict().items()}
        for number, fields in self.optimizer.state_dict()["state"].items():
            found |= {("optimizer", number, name): value.numpy().tobytes() for name, value in fields.items()}
        for name in self.store.tables:
            for block in self.store.rows(name):
                linear = block.linear if block.linear is not None else np.zeros(block.keys.size)
                last = block.last if block.last is not None else np.zeros(block.keys.size)
                for i, key in enumerate(block.keys.tolist()):
                    row = (block.vectors[i], linear[i], block.state[i], last[i])
                    found[name, key, bool(block.nulls[i])] = b"".join(part.tobytes() for part in row)
        return found

    def close(self) -> None:
        self.store.close()


class GroupTwin:
    """One group of the twin."""

    def __init__(self, group) -> None:
        self.group, self.native = group, group.native
        self.num_spaces, self.has_last = 2 * len(group.plan.tables), group.plan.has_membership
        self.before: dict = {}
        self.now: dict = {}
        self.left: list = []
        self.removed: list = []

    def begin(self, full: bool) -> None:
        self.now = {}
        self.group._lower()  # what is on a device, as the store does before a snapshot
        for space in range(self.num_spaces):
            keys, records, _ = self.native.export_rows(space, 0, 10**6)
            last = self.native.last_trained(space, keys) if self.has_last else np.zeros(keys.size, np.uint32)
            for i, key in enumerate(keys.tolist()):
                self.now[space, key] = (int(last[i]), records[i].tobytes())
        chosen = [name for name, row in self.now.items() if full or self.before.get(name) != row]
        self.left = [(space, [name for name in chosen if name[0] == space]) for space in range(self.num_spaces)]
        gone = [name for name in self.before if name not in self.now]
        self.removed = [
            (space, np.array([key for s, key in gone if s == space], np.uint64)) for space in range(self.num_spaces)
        ]

    def take_tombstones(self):
        return self.removed

    def take_snapshot(self, count):
        while self.left and not self.left[0][1]:
            self.left.pop(0)
        if not self.left:
            return None
        space, names = self.left[0]
        taken, self.left[0] = names[:count], (space, names[count:])
        rows = [self.now[name] for name in taken]
        keys = np.array([key for _, key in taken], np.uint64)
        last = np.array([last for last, _ in rows] if self.has_last else [], np.uint32)
        return space, keys, last, np.frombuffer(b"".join(r for _, r in rows), np.float32).reshape(len(rows), -1)


class SnapshotTwin:
    """What the native snapshot promises, by copying every row when it begins."""

    def __init__(self, store) -> None:
        self.groups = [GroupTwin(group) for group in store.groups]
        self.needs_full = True
        self.is_open = False

    def begin_snapshot(self, full: bool) -> None:
        assert not self.is_open, "a snapshot is under way"
        self.is_open = True
        for group in self.groups:
            group.begin(full)

    def end_snapshot(self, kept: bool) -> None:
        assert self.is_open, "no snapshot is under way"
        self.is_open, self.needs_full = False, not kept
        for group in self.groups:
            group.before = group.now

    def mark_saved(self) -> None:
        """The rows are those of a checkpoint."""
        self.begin_snapshot(True)
        self.end_snapshot(True)


class Watched:
    """A snapshot that calls `taking` with a group's number before it hands out rows of it."""

    def __init__(self, snapshot, taking) -> None:
        self.snapshot, self.taking = snapshot, taking
        self.groups = [WatchedGroup(self, number) for number in range(len(snapshot.groups))]

    def __getattr__(self, name):
        return getattr(self.snapshot, name)


class WatchedGroup:
    def __init__(self, watched, number) -> None:
        self.watched, self.number = watched, number

    def take_snapshot(self, count):
        self.watched.taking(self.number)
        return self.watched.snapshot.groups[self.number].take_snapshot(count)

    def take_tombstones(self):
        return self.watched.snapshot.groups[self.number].take_tombstones()
