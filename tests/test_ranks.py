"""Ranks as threads: what they bring arrives, and no failure leaves one of them waiting."""

import threading

import numpy as np
import pytest
from ranks import in_ranks

from sfctr.spec.errors import PeerError


def text(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), np.uint8)


def words(parts) -> list[str]:
    return [bytes(part).decode() for part in parts]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gather_gives_every_rank_what_all_gave_in_their_order(size):
    gave = [f"rank {rank}" * rank for rank in range(size)]
    assert in_ranks(size, lambda peers: words(peers.gather("x", text(gave[peers.rank])))) == [gave] * size


def test_exchange_gives_a_rank_what_each_had_for_it():
    def body(peers):
        got = peers.exchange("x", [text(f"{peers.rank}{to}") for to in range(3)], [2, 2, 2])
        return words(got), peers.moved

    assert in_ranks(3, body) == [([f"{of}{rank}" for of in range(3)], {"x": 4}) for rank in range(3)]


def test_the_first_error_of_a_rank_is_raised_and_no_other_rank_waits():
    def body(peers):
        for _ in range(3):
            peers.gather("x", text(""))
        if peers.rank == 1:
            raise ValueError("of rank 1")
        peers.gather("x", text(""))

    with pytest.raises(ValueError, match="of rank 1"):
        in_ranks(3, body)


def test_ranks_that_make_different_calls_are_refused():
    with pytest.raises(PeerError, match="different calls"):
        in_ranks(2, lambda peers: peers.gather(f"kind {peers.rank}", text("")))


def test_a_rank_that_has_ended_is_not_waited_for():
    with pytest.raises(PeerError, match=r"different calls: .*'gather'.*'end'"):
        in_ranks(2, lambda peers: peers.rank or peers.gather("x", text("")))


def test_a_rank_that_never_comes_is_waited_for_only_so_long():
    others_are_done = threading.Event()

    def body(peers):
        if peers.rank:
            others_are_done.wait(30)
        else:
            try:
                peers.gather("x", text(""))
            finally:
                others_are_done.set()

    with pytest.raises(PeerError, match="did not come in time"):
        in_ranks(2, body, timeout_s=0.2)
