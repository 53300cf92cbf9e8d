"""Whatever ends or holds up one rank, the others say which one it was."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from processes import free_port, run_places

from sfctr.parallel.world import World
from sfctr.spec.errors import DataError, PeerError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

WHO = r"rank {} \([^,()]+, pid \d+\)"
ONE = np.ones(1, dtype=np.uint8)


def told(place: dict, who: int, how: str, timeout_s: float = 30.0) -> tuple[str, float]:
    """The error of this rank where rank `who` fails as `how` says, and how long it took to come."""
    began = time.monotonic()
    try:
        with World.join(**place, timeout_s=timeout_s) as world:
            peers = world.peers("a")
            peers.gather("x", ONE)
            began = time.monotonic()
            if world.rank == who:
                FAIL[how]()
            elif how == "raises":
                time.sleep(1)  # the failed rank is to stay until they have come to hear of it
            peers.gather("x", ONE)
    except (PeerError, DataError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return "no error", 0.0


def raise_error() -> None:
    raise DataError("the value is 3", file="a.csv", row=7)


FAIL = {
    "raises": raise_error,
    "leaves": lambda: os._exit(1),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "is stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleeps": lambda: time.sleep(4.5),
}


@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_that_an_error_ends_has_the_last_word(who):
    results = run_places(3, told, who, "raises")
    for rank, (error, took_s) in enumerate(results):
        if rank == who:
            assert error == "DataError: a.csv, row 7: the value is 3"
        else:
            assert re.fullmatch(f"PeerError: {WHO.format(who)} has ended: a.csv, row 7: the value is 3", error)
        assert took_s < 20, "the time-out of 30 s need not be over"


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_a_rank_that_dies_without_a_word_is_named(how):
    results = run_places(3, told, 2, how, deaths=[2])
    for error, took_s in results[:2]:
        assert re.fullmatch(f"PeerError: {WHO.format(2)} has ended; see its output", error)
        assert took_s < 20


def test_the_rank_that_the_others_met_at_is_named_when_it_dies():
    results = run_places(2, told, 0, "is killed", deaths=[0])
    assert re.fullmatch(
        f"PeerError: {WHO.format(0)} has ended or cannot be reached: the others met at it; see its output",
        results[1][0],
    )


def test_a_rank_that_is_late_is_named_and_not_those_that_wait_for_it():
    late = f"PeerError: {WHO.format(1)} has not answered for 1 s; see its output"
    results = run_places(3, told, 1, "sleeps", 1.0)
    assert re.fullmatch(late, results[0][0]) and re.fullmatch(late, results[2][0])
    assert results[1][0].startswith("PeerError"), "it learns that the others have gone on without it"


def test_a_stopped_process_is_named():
    results = run_places(2, told, 1, "is stopped", 1.0, deaths=[1])
    assert re.fullmatch(f"PeerError: {WHO.format(1)} has not answered for 1 s; see its output", results[0][0])


def alone(place: dict) -> str:
    with pytest.raises(PeerError) as error, World.join(**{**place, "size": 2, "port": free_port()}, timeout_s=1.0):
        pass
    return str(error.value)


def test_a_rank_that_nobody_meets_says_so():
    assert re.match(r"rank 0 did not meet all of 2 processes at 127\.0\.0\.1:\d+ within 1 s", run_places(1, alone)[0])


def held_up(place: dict) -> list[str]:
    """Rank 0 has an error while a thread of it waits for rank 1, which waits for rank 0: only leaving frees both."""
    heard: list[str] = []
    given_up = threading.Event()

    def give_up(words: str) -> None:
        heard.append(words)
        given_up.set()

    world = World.join(**place, timeout_s=40.0, on_failure=give_up)
    first, second = world.peers("first"), world.peers("second")
    waits = first if world.rank == 0 else second
    threading.Thread(target=lambda: waits.gather("x", ONE), daemon=True).start()
    if world.rank == 0:
        world.fail(ValueError("a bug"))
    given_up.wait(30)
    return heard


def test_ranks_that_wait_for_each_other_after_an_error_are_told_to_give_up():
    for heard in run_places(2, held_up):
        assert len(heard) == 1 and re.fullmatch(f"{WHO.format(0)} has ended: ValueError: a bug", heard[0])


def stop_while_others_have_patience(place):
    """Rank 1 is stopped; the others wait for it by peers that would wait for an hour."""
    words = []
    with suppress(PeerError), World.join(**place, timeout_s=3, on_failure=words.append) as world:
        patient = world.peers("patient", timeout_s=3600)
        if place["rank"] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        threading.Thread(target=patient.gather, args=("x", np.zeros(1, np.uint8)), daemon=True).start()
        until = time.monotonic() + 40
        while not words and time.monotonic() < until:
            time.sleep(0.1)
        raise PeerError(words[0] if words else "nothing")
    return words[0]


def test_a_rank_without_signs_of_life_is_named_whatever_the_others_wait_for():
    found = run_places(3, stop_while_others_have_patience, timeout_s=80, deaths=[1])
    for rank in (0, 2):
        assert re.match(r"rank 1 \(.*\) has not answered for \d+ s; see its output", found[rank]), found
