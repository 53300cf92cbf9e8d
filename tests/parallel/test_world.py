"""Processes meet, say things to each other, and leave together."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from processes import RankFailed, run_ranks

from sfctr.parallel.world import World

pytestmark = pytest.mark.processes


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def everything(world: World):
    peers = world.peers("a")
    gathered = peers.gather("words", array(*range(world.rank)))
    parts = [array(*[10 * world.rank + q] * q) for q in range(world.size)]
    exchanged = peers.exchange("keys", parts)
    known = peers.exchange("keys", parts, lengths=[world.rank] * world.size)
    assert all((a == b).all() for a, b in zip(exchanged, known, strict=True))
    return [p.tolist() for p in gathered], [p.tolist() for p in exchanged], peers.bytes


def test_gather_and_exchange_give_each_rank_what_the_others_had_for_it():
    results = run_ranks(3, everything)
    for rank, (gathered, exchanged, _) in enumerate(results):
        assert gathered == [[], [0], [0, 1]]
        assert exchanged == [[10 * q + rank] * rank for q in range(3)]
    # Of 0 + 1 + 2 bytes the part that stays does not count; both exchanges do.
    assert [counts["keys"] for _, _, counts in results] == [(6, 0), (4, 4), (2, 8)]
    assert [counts["words"] for _, _, counts in results] == [(0, 3), (2, 2), (4, 1)]


def large(world: World) -> bool:
    mine = np.full(3_000_001, world.rank, dtype=np.uint8)
    mine.flags.writeable = False
    return all((part == q).all() for q, part in enumerate(world.peers("a").gather("rows", mine)))


def test_large_buffers_arrive_whole():
    assert all(run_ranks(2, large))


def side_by_side(world: World) -> list[int]:
    peers = [world.peers("one"), world.peers("two")]
    found: list[list[int]] = [[], []]

    def work(which: int) -> None:
        for turn in range(50):
            parts = peers[which].gather("x", array(which, turn, world.rank))
            assert [p.tolist() for p in parts] == [[which, turn, q] for q in range(world.size)]
            found[which].append(turn)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return [len(turns) for turns in found]


def test_two_threads_speak_at_once_each_by_peers_of_its_own():
    assert run_ranks(2, side_by_side) == [[50, 50]] * 2


def wrong(world: World) -> None:
    raise ValueError(f"of rank {world.rank}")


def test_what_a_rank_raises_is_raised_in_the_test():
    with pytest.raises(RankFailed, match=r"(?s)rank 0: .*ValueError: of rank 0.*rank 1: .*ValueError: of rank 1"):
        run_ranks(2, wrong)
