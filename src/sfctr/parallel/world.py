"""The processes of a run, met: who this one is, and what it can say to the others.

`with World.join(rank=..., size=..., address=..., port=...) as world:` meets the others at address:port and leaves them
together with them: no rank leaves well before all are done. A rank that an error ends says so on the way out, and every
call of the others raises PeerError with its words. Nothing of it reads the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import cast

import numpy as np

from sfctr.spec.errors import PeerError
from sfctr.spec.peers import Bytes

from . import collectives
from .board import Board

END = "end"
"""The name of peers by which ranks meet before they leave, where there are such: they may wait longer than any call."""


class World:
    """Made by join(). `local_rank` counts the processes of this machine; `device` is this one's."""

    def __init__(self, *, rank: int, size: int, local_rank: int, device: str, timeout_s: float, board: Board) -> None:
        self.rank, self.size, self.local_rank, self.device, self.timeout_s = rank, size, local_rank, device, timeout_s
        self.board = board
        self._peers: dict[str, GlooPeers] = {}
        self._store: collectives.Store | None = None

    @classmethod
    def join(
        cls,
        *,
        rank: int,
        size: int,
        address: str,
        port: int,
        local_rank: int = 0,
        timeout_s: float = 120.0,
        device: str = "cpu",
        hosts_store: bool | None = None,
        attempt: str = "",
        on_failure: Callable[[str], None] | None = None,
    ) -> World:
        """Meet the others. Collective; raises PeerError where not all of them come within timeout_s.

        hosts_store: whether this process holds the store at address:port; None: rank 0 does.
        attempt: the same in all ranks, and of no earlier job that met at a store which somebody else holds.
        on_failure: see Board.
        """
        host = rank == 0 if hosts_store is None else hosts_store
        try:
            stores = [
                collectives.open_store(address, port, host=host and number == 0, timeout_s=timeout_s, prefix=attempt)
                for number in range(2)  # a connection serves one call at a time: the board has its own
            ]
            board = Board(stores[1], rank, size, timeout_s=timeout_s, on_failure=on_failure)
            board.meet()
            collectives.begin(stores[0], rank, size, timeout_s=timeout_s, device=device)
        except RuntimeError as error:
            raise PeerError(
                f"rank {rank} did not meet all of {size} processes at {address}:{port} within {timeout_s:g} s"
                f" ({_first_line(error)}); see that all were started, with the same address, and can reach it"
            ) from None
        world = cls(rank=rank, size=size, local_rank=local_rank, device=device, timeout_s=timeout_s, board=board)
        world._store = stores[0]  # which others still read from when torch has let go of it
        return world

    def peers(self, name: str, *, timeout_s: float | None = None) -> GlooPeers:
        """All ranks, by connections of their own. Collective where the name is new; one thread may use them.

        timeout_s: how long a call waits for another rank that lives; None: as long as any.
        """
        if name not in self._peers:
            patience_s = timeout_s or self.timeout_s
            with self.answering(name):
                group = collectives.new_group(range(self.size), patience_s)
            assert group is not None
            self._peers[name] = GlooPeers(self, name, group, patience_s)
        return self._peers[name]

    def peers_among(self, name: str, groups: Sequence[Sequence[int]]) -> GlooPeers:
        """The ranks of that one of the groups that this rank is in; their ranks count within it. Collective over all
        ranks, which give the same groups."""
        with self.answering(name):
            made = [collectives.new_group(ranks, self.timeout_s) for ranks in groups]
        mine = next(group for group in made if group is not None)
        self._peers[name] = GlooPeers(self, name, mine, self.timeout_s)
        return self._peers[name]

    @property
    def bytes(self) -> dict[str, tuple[int, int]]:
        """(sent, received) by kind, over all peers."""
        total: dict[str, tuple[int, int]] = {}
        for peers in list(self._peers.values()):
            for kind, (sent, received) in list(peers.bytes.items()):
                before = total.get(kind, (0, 0))
                total[kind] = before[0] + sent, before[1] + received
        return total

    @contextmanager
    def answering(self, name: str, timeout_s: float | None = None) -> Iterator[None]:
        """What torch does inside with other ranks counts as one call of the peers `name`, and raises PeerError."""
        self.board.calls[name] = self.board.calls.get(name, 0) + 1
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if not collectives.is_lost_peer(error):
                raise
            waited = time.monotonic() - began
            is_late = waited > 0.9 * (timeout_s or self.timeout_s)
            raise PeerError(self.board.explain(name, waited, timed_out=is_late)) from None

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank is about to end because of `error`. Whoever learns of it first calls it: other
        threads of this process may wait for ranks that wait for this one."""
        if not isinstance(error, PeerError):
            self.board.report(error)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None:
                if END in self._peers:
                    self._peers[END].gather(END, np.zeros(0, np.uint8))
                else:
                    with self.answering(END):
                        collectives.barrier()
        except PeerError as lost:
            error = lost
            raise
        finally:
            if error is not None:
                self.fail(error)
            for peers in self._peers.values():
                peers.close()
            collectives.end()
            if error is not None:
                self.board.linger()
            self.board.close()


class GlooPeers:
    """All ranks by a gloo group; see spec.peers.Peers. bytes: (sent, received) by kind, of those that left this rank or
    came to it from another."""

    def __init__(self, world: World, name: str, group: collectives.Group, timeout_s: float) -> None:
        self.rank, self.size, self.name = group.rank(), group.size(), name
        self.bytes: dict[str, tuple[int, int]] = {}
        self._world = world
        self._timeout_s, self._group = timeout_s, cast(collectives.Group | None, group)

    def close(self) -> None:
        """Let go of the connections, which then close: whoever waits for this rank learns at once that it has gone."""
        self._group = None

    def gather(self, kind: str, mine: Bytes) -> list[Bytes]:
        return self.exchange(kind, [mine] * self.size)

    def exchange(self, kind: str, parts: Sequence[Bytes], lengths: Sequence[int] | None = None) -> list[Bytes]:
        assert len(parts) == self.size
        group = self._group
        if group is None:
            raise PeerError(self._world.board.failure() or f"rank {self.rank} has left the others")
        with self._world.answering(self.name, self._timeout_s):
            into = collectives.exchange(parts, lengths, group)
        kept = parts[self.rank].nbytes
        self._count(kind, sum(part.nbytes for part in parts) - kept, sum(part.nbytes for part in into) - kept)
        return into

    def _count(self, kind: str, sent: int, received: int) -> None:
        before = self.bytes.get(kind, (0, 0))
        self.bytes[kind] = before[0] + sent, before[1] + received


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
