"""Brings keys to the ranks that own their rows, rows to the ranks that use them, and gradients back; see spec.exchange.

                      share                            bring_rows                     send_gradients
  part of a batch ──▶ its keys, by owner ──▶ owners ──▶ weights of rows ──▶ users ──▶ merged gradients ──▶ owners
                                             merge, plan, fetch                        merge in rank order, update

A message carries what all tables of a step have for a rank. A row is asked for, sent and answered with a gradient once
a batch and rank, however often the rank's part has its key: positions are virtual ids.

Rows of replicated tables have copies on every rank; see copies.py. Owners merge gradients for them, too, and tell all
the sum: so a row and its copies get the same bits, and both ways of synchronising come to the same.

  P ranks, U unique keys of a working set, W words of a row's weights, T tables of a group
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfctr import _native
from sfctr.spec.batch import F32, I64, U8, Bools
from sfctr.spec.exchange import Whole
from sfctr.spec.peers import Bytes, Peers

from .copies import Copies, Replica, replicated_ids
from .heads import failed_head, head_of, last_head, read_heads
from .owners import GroupOwners
from .packing import Array, Reader, packed
from .routes import Asked, KeyList, Route, asked, route
from .shapes import Gradients, RowShape
from .traffic import Traffic


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSide:
    """What the exchange knows of one group of the store.

    is_replicated: bool [2T], native tables whose rows have copies. replica: where the copies are; None: there are none.
    """

    owners: GroupOwners
    shape: RowShape
    is_replicated: Bools
    has_membership: bool
    record_words: int
    replica: Replica | None = None


@dataclass(frozen=True, kw_only=True)
class SharedBatch:
    """See spec.exchange.Shared. routes, asked, copies: of each group."""

    whole: Whole
    own: tuple[_native.WorkingSet, ...]
    owned: tuple[_native.WorkingSet, ...]
    routes: tuple[Route, ...]
    asked: tuple[Asked, ...]
    copies: tuple[Copies | None, ...]


class RowExchange:
    """See spec.exchange.Exchange.

    reading, training: Peers for the thread that reads and for the one that trains; viewing: for the latter, too, where
    it evaluates and may have to wait for ranks that read more slowly; None: training's. sides: of every group of the
    store, in its order.
    """

    def __init__(
        self,
        reading: Peers,
        training: Peers,
        sides: Sequence[GroupSide],
        *,
        viewing: Peers | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.rank, self.size, self.timeout_s = training.rank, training.size, timeout_s
        self._reading, self._training, self._sides = reading, training, tuple(sides)
        self._viewing = training if viewing is None else viewing
        self.traffic = Traffic()

    # ----------------------------------------------------------------------------------------------- reader's thread

    def share(self, whole: Whole, working_sets: Sequence[_native.WorkingSet]) -> SharedBatch | None:
        replicated = [side.is_replicated for side in self._sides]
        routes = self._routes(working_sets, replicated)
        messages = self._tell(self._reading, routes, head_of(whole))
        over_all = read_heads(messages)
        if over_all is None:
            return None
        found = self._asked(messages, replicated)
        self.traffic.count(routes, working_sets, [side.shape for side in self._sides], self.rank)
        return SharedBatch(
            whole=over_all,
            own=tuple(working_sets),
            owned=tuple(_owned(mine) for mine in found),
            routes=routes,
            asked=found,
            copies=tuple(self._copies(side, mine) for side, mine in zip(self._sides, found, strict=True)),
        )

    def end(self, *, read_all: bool) -> None:
        """Raises PeerError where others have batches."""
        messages = self._reading.exchange("keys", [packed(last_head(read_all=read_all))] * self.size)
        read_heads([Reader(message) for message in messages])

    def fail(self, error: BaseException) -> None:
        self._reading.exchange("keys", [packed(failed_head(error))] * self.size)

    def _routes(self, working_sets: Sequence[_native.WorkingSet], replicated: Sequence[Bools]) -> tuple[Route, ...]:
        return tuple(
            route(KeyList(ws.keys(), ws.table_begin()), side.owners, which, self.size)
            for ws, side, which in zip(working_sets, self._sides, replicated, strict=True)
        )

    def _tell(self, peers: Peers, routes: Sequence[Route], head: Sequence[Array]) -> list[Reader]:
        """Tell every rank the keys that it must know of; what all told this one."""
        messages: list[Bytes] = []
        for rank in range(self.size):
            told = [way.told(rank) for way in routes]
            messages.append(packed([*head, *(keys.counts for keys in told), *(keys.keys for keys in told)]))
        return [Reader(message) for message in peers.exchange("keys", messages)]

    def _asked(self, messages: Sequence[Reader], replicated: Sequence[Bools]) -> tuple[Asked, ...]:
        """Of each group, what the messages of all ranks say."""
        told: list[list[KeyList]] = []
        for message in messages:
            counts = [message.take(np.int64, side.owners.num_native) for side in self._sides]
            told.append([KeyList.of_counts(message.take(np.uint64, int(n.sum())).copy(), n) for n in counts])
        return tuple(
            asked([of_rank[number] for of_rank in told], side.owners, which, self.rank)
            for number, (side, which) in enumerate(zip(self._sides, replicated, strict=True))
        )

    def _copies(self, side: GroupSide, mine: Asked) -> Copies | None:
        if side.replica is None:
            return None
        return Copies(
            side.replica, side.owners, mine.others, is_replicated=side.is_replicated, shape=side.shape, rank=self.rank
        )

    # ---------------------------------------------------------------------------------- where copies are in the tiers

    def announce(self, shared: SharedBatch) -> None:
        for copies in filter(None, shared.copies):
            copies.announce()

    def place(self, shared: SharedBatch, number: int) -> bool:
        copies = shared.copies[number]
        return copies is None or copies.place()

    def discard(self, shared: SharedBatch) -> None:
        for copies in filter(None, shared.copies):
            copies.discard()

    def commit(self, shared: SharedBatch, step: int, *, lr_factor: float, scale: float) -> None:
        for copies in filter(None, shared.copies):
            copies.update(step, lr_factor=lr_factor, scale=scale)

    # ---------------------------------------------------------------------------------------------- trainer's thread

    def bring_rows(self, shared: SharedBatch, groups: Sequence[Any]) -> None:
        if any(shared.copies):
            self._bring_copies(shared, groups)
        found = [_weights(group, ws, side) for group, ws, side in zip(groups, shared.owned, self._sides, strict=True)]
        kinds = [
            group.kinds(ws) if side.has_membership else None
            for group, ws, side in zip(groups, shared.owned, self._sides, strict=True)
        ]
        arrived, their_kinds = self._bring(self._training, shared.routes, shared.asked, shared.owned, found, kinds)
        for number, (group, ws, copies) in enumerate(zip(groups, shared.own, shared.copies, strict=True)):
            if copies is not None:
                _put_copies(arrived[number], shared, number, found[number], copies, self.rank)
            group.adopt(ws, arrived[number], their_kinds[number], train=True)

    def _bring(
        self,
        peers: Peers,
        routes: Sequence[Route],
        questions: Sequence[Asked],
        owned: Sequence[_native.WorkingSet],
        weights: Sequence[F32],
        kinds: Sequence[U8 | None],
    ) -> tuple[list[F32], list[U8 | None]]:
        """Answer what was asked with `weights` [U, W] of `owned`; of each group the weights of this rank's own keys,
        and what kinds they are where `kinds` are given."""
        messages = []
        for rank in range(self.size):
            parts: list[Array] = []
            for side, question, ws, found, kind in zip(self._sides, questions, owned, weights, kinds, strict=True):
                ids = ws.source_ids(rank)[question.answered[rank]]
                parts += side.shape.pack_weights(found[ids])
                parts += [] if kind is None else [kind[ids]]
            messages.append(packed(parts))
        lengths = [
            sum(
                side.shape.weight_bytes(way.travelling[rank].size) + (kind is not None) * way.travelling[rank].size
                for side, way, kind in zip(self._sides, routes, kinds, strict=True)
            )
            for rank in range(self.size)
        ]
        arrived = [
            np.zeros((way.keys.keys.size, side.shape.words), np.float32)
            for side, way in zip(self._sides, routes, strict=True)
        ]
        theirs = [None if kind is None else np.zeros(len(a), np.uint8) for kind, a in zip(kinds, arrived, strict=True)]
        for rank, message in enumerate(map(Reader, peers.exchange("rows", messages, lengths))):
            for side, way, out, kind in zip(self._sides, routes, arrived, theirs, strict=True):
                places = way.travelling[rank]
                out[places] = side.shape.take_weights(message, places.size)
                if kind is not None:
                    kind[places] = message.take(np.uint8, places.size)
        return arrived, theirs

    def _bring_copies(self, shared: SharedBatch, groups: Sequence[Any]) -> None:
        """Ask owners for the records that there are no copies of, and answer those that ask."""
        wanted = [None if copies is None else copies.wanted() for copies in shared.copies]
        requests = [_requests(wanted, rank) for rank in range(self.size)]
        answers = []
        for message in map(Reader, self._training.exchange("requests", requests)):
            parts: list[Array] = []
            for side, group, ws in zip(self._sides, groups, shared.owned, strict=True):
                if side.replica is not None:
                    (count,) = message.take(np.int64, 1)
                    places = message.take(np.int64, int(count))
                    parts.append(group.records(ws, replicated_ids(ws, side.is_replicated)[places]))
            answers.append(packed(parts))
        lengths = [
            sum(
                4 * side.record_words * (0 if ids is None else ids[rank].size)
                for side, ids in zip(self._sides, wanted, strict=True)
            )
            for rank in range(self.size)
        ]
        for rank, message in enumerate(map(Reader, self._training.exchange("records", answers, lengths))):
            for side, copies, ids in zip(self._sides, shared.copies, wanted, strict=True):
                if copies is not None and ids is not None and ids[rank].size:
                    records = message.take(np.float32, ids[rank].size, side.record_words)
                    copies.fill(rank, ids[rank], np.ascontiguousarray(records))

    def send_gradients(self, shared: SharedBatch, groups: Sequence[Any]) -> None:
        mine = [Gradients(*group.gradients(ws)) for group, ws in zip(groups, shared.own, strict=True)]
        messages = []
        for rank in range(self.size):
            parts: list[Array] = []
            for side, way, found in zip(self._sides, shared.routes, mine, strict=True):
                parts += side.shape.pack_gradients(found.only(way.by_owner[rank]))
            messages.append(packed(parts))
        lengths = [
            sum(
                side.shape.gradient_bytes(question.owned[rank].keys.size)
                for side, question in zip(self._sides, shared.asked, strict=True)
            )
            for rank in range(self.size)
        ]
        for rank, message in enumerate(map(Reader, self._training.exchange("gradients", messages, lengths))):
            for side, group, ws, question in zip(self._sides, groups, shared.owned, shared.asked, strict=True):
                found = side.shape.take_gradients(message, question.owned[rank].keys.size)
                group.add_gradients(ws, ws.source_ids(rank), *(_aligned(array) for array in found))
        if any(shared.copies):
            self._tell_sums(shared, groups)

    def _tell_sums(self, shared: SharedBatch, groups: Sequence[Any]) -> None:
        """Owners tell all ranks the merged gradients of rows that have copies: in full, as the rows get them."""
        parts: list[Array] = []
        for side, group, ws in zip(self._sides, groups, shared.owned, strict=True):
            if side.replica is not None:
                found = Gradients(*group.gradients(ws)).only(replicated_ids(ws, side.is_replicated))
                parts += side.shape.exact.pack_gradients(found)
        for rank, message in enumerate(map(Reader, self._training.gather("sums", packed(parts)))):
            for side, copies in zip(self._sides, shared.copies, strict=True):
                if copies is not None and rank != self.rank:
                    found = side.shape.exact.take_gradients(message, copies.num_of_owner(rank))
                    copies.add(rank, found)

    def view(
        self, working_sets: Sequence[_native.WorkingSet], groups: Sequence[Any], see: Callable[[Sequence[Any]], None]
    ) -> None:
        nowhere = [np.zeros_like(side.is_replicated) for side in self._sides]
        routes = self._routes(working_sets, nowhere)
        questions = self._asked(self._tell(self._viewing, routes, ()), nowhere)
        owned = tuple(_owned(question) for question in questions)
        see(owned)
        found = [_weights(group, ws, side) for group, ws, side in zip(groups, owned, self._sides, strict=True)]
        kinds = [group.kinds(ws) for group, ws in zip(groups, owned, strict=True)]
        arrived, theirs = self._bring(self._viewing, routes, questions, owned, found, kinds)
        for group, ws, weights, kind in zip(groups, working_sets, arrived, theirs, strict=True):
            group.adopt(ws, weights, kind, train=False)


def _owned(question: Asked) -> _native.WorkingSet:
    num_tables = (question.owned[0].table_begin.size - 1) // 2
    return _native.WorkingSet.of_sources(num_tables, [(keys.keys, keys.table_begin) for keys in question.owned])


def _weights(group: Any, working_set: _native.WorkingSet, side: GroupSide) -> F32:
    """[U, W]"""
    found = np.empty((working_set.num_unique, side.shape.words), np.float32)
    group.weights(working_set, found)
    return found


def _put_copies(arrived: F32, shared: SharedBatch, number: int, owned: F32, copies: Copies, rank: int) -> None:
    """The weights of this rank's own keys whose rows have copies here: its own rows, and copies of others'."""
    way, ws = shared.routes[number], shared.owned[number]
    mine = way.by_owner[rank]
    has_copies = way.has_copies[mine]
    arrived[mine[has_copies]] = owned[ws.source_ids(rank)[has_copies]]
    arrived[np.flatnonzero(way.has_copies & (way.owner != rank))] = copies.weights()


def _requests(wanted: Sequence[list[I64] | None], rank: int) -> Bytes:
    """Of each group with copies how many rows of an owner are asked for, and which."""
    parts: list[Array] = []
    for ids in wanted:
        if ids is not None:
            parts += [np.array([ids[rank].size]), ids[rank].astype(np.int64)]
    return packed(parts)


def _aligned(array: Array) -> Array:
    return np.require(array, requirements=["C", "ALIGNED"])
