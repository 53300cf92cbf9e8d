"""What all ranks do together is done by all, or raised by all."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import in_ranks

from sfctr.spec.errors import CheckpointError, DiskError, PeerError
from sfctr.spec.peers import ALONE
from sfctr.spec.together import Together


@pytest.mark.parametrize("size", [1, 3])
def test_all_hear_what_each_said(size):
    def body(peers):
        with Together(peers, "test") as together:
            return together.say(bytes([peers.rank] * peers.rank)), together.hear_first(b"%d" % peers.rank)

    assert in_ranks(size, body) == [([bytes([rank] * rank) for rank in range(size)], b"0")] * size


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("failing", range(3))
def test_what_one_raises_all_raise_at_their_next_call(at, failing):
    def body(peers):
        with pytest.raises(CheckpointError) as found, Together(peers, "test") as together:
            for call in range(3):
                if (call, peers.rank) == (at, failing):
                    raise CheckpointError("the disk is full")
                together.say()
        assert len(peers.gather("later", np.zeros(0, np.uint8))) == 3  # nobody is a call ahead
        return str(found.value)

    told = f"rank {failing}: the disk is full"
    assert in_ranks(3, body) == [told if rank != failing else "the disk is full" for rank in range(3)]


def test_a_rank_that_fails_as_the_last_is_heard_by_those_that_leave():
    def body(peers):
        with pytest.raises((DiskError, PeerError)) as found, Together(peers, "test"):
            if peers.rank == 1:
                raise DiskError("no such segment")
        return type(found.value)

    assert in_ranks(2, body) == [DiskError, DiskError]


def test_a_fault_of_the_program_is_another_one_for_the_others():
    def body(peers):
        with pytest.raises((ZeroDivisionError, PeerError)) as found, Together(peers, "test") as together:
            if peers.rank == 1:
                raise ZeroDivisionError("by the test")
            together.say()
        return str(found.value)

    assert in_ranks(2, body) == ["rank 1 cannot go on: ZeroDivisionError: by the test", "by the test"]


def test_each_raises_its_own_where_two_fail():
    def body(peers):
        with pytest.raises(CheckpointError, match=f"^rank {peers.rank} itself$"), Together(peers, "test"):
            raise CheckpointError(f"rank {peers.rank} itself")

    in_ranks(2, body)


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("failing", range(2))
def test_blocks_in_each_other_are_all_left_wherever_one_failed(depth, failing):
    def body(peers):
        def fail_at(now):
            if (now, peers.rank) == (depth, failing):
                raise CheckpointError("the disk is full")

        with pytest.raises(CheckpointError, match="the disk is full"), Together(peers, "test") as outer:
            fail_at(0)
            outer.say()
            with Together(peers, "test"):
                fail_at(1)
                with Together(peers, "test") as inner:
                    inner.say()
                fail_at(2)
        assert len(peers.gather("later", np.zeros(0, np.uint8))) == 2  # nobody is a call ahead

    in_ranks(2, body)


def test_alone_what_is_raised_is_raised():
    with pytest.raises(KeyError), Together(ALONE, "test") as together:
        assert (together.say(b"x"), together.is_first) == ([b"x"], True)
        raise KeyError
