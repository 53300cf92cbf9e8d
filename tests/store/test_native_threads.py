"""The thread pool and the SIMD levels as Python sees them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from sfctr import _native


def unique(seed: int) -> list[int]:
    keys = np.random.default_rng(seed).integers(0, 1000, (8, 4000), dtype=np.uint64)
    ws = _native.WorkingSet(8, 4000, [_native.FeatureKeys(t, "one", keys[t]) for t in range(8)])
    return ws.keys().tolist()


@pytest.mark.parametrize("n", [0, -1, 1025])
def test_an_impossible_number_of_threads_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 1024"):
        _native.set_num_threads(n)
    assert _native.num_threads() == 1


def test_the_number_of_threads_may_change_at_any_time() -> None:
    expected = unique(0)
    for n in (1, 4, 2, 7, 1, 3):
        _native.set_num_threads(n)
        assert _native.num_threads() == n
        assert unique(0) == expected


def test_several_python_threads_may_use_the_pool_at_once() -> None:
    _native.set_num_threads(3)
    expected = {seed: unique(seed) for seed in range(4)}
    results: dict[int, bool] = {}

    def work(seed: int) -> None:
        results[seed] = all(unique(seed) == expected[seed] for _ in range(20))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), True)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.processes
def test_a_forked_child_makes_its_own_workers_and_does_not_hang() -> None:
    _native.set_num_threads(3)
    expected = unique(1)
    child = os.fork()
    if child == 0:  # pragma: no cover  the child ends here, without pytest's exit handlers
        os._exit(0 if _native.num_threads() == 3 and unique(1) == expected else 1)
    deadline = time.monotonic() + 30
    status = None
    while status is None and time.monotonic() < deadline:
        found, code = os.waitpid(child, os.WNOHANG)
        status = code if found else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert status == 0


def test_levels_begin_with_the_baseline_and_the_best_is_chosen() -> None:
    levels = _native.simd_levels()
    assert levels[0] == "baseline" and _native.simd_level() == levels[-1]
    _native.set_simd_level("baseline")
    assert _native.simd_level() == "baseline"
    with pytest.raises(ValueError, match="SIMD level 'sse9' is not available"):
        _native.set_simd_level("sse9")


@pytest.mark.parametrize("flush", [False, True])
def test_workers_share_the_callers_mode_for_denormals(flush: bool) -> None:
    """1e-40 is denormal: flushed to zero on all threads, or on none."""
    import torch

    keys = np.arange(4000, dtype=np.uint64)
    group = _native.RowGroup(1, False, "sgd", None, [_native.TableInit(0, 0, "uniform", 0.0, 0.0)])
    group.import_rows(0, keys, np.full((keys.size, 1), 1e-40, dtype=np.float32))
    offsets = np.arange(keys.size + 1)
    weights = np.full(keys.size, 0.5, dtype=np.float32)
    ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "sum", keys, offsets=offsets, weights=weights)])
    group.locate(ws, train=False)
    _native.set_num_threads(3)
    torch.set_flush_denormal(flush)
    try:
        out = np.empty(keys.size, dtype=np.float32)
        for _ in range(20):
            group.forward(ws, 0, keys.size, out)
            zeros = np.count_nonzero(out.view(np.uint32) == 0)
            assert zeros == (keys.size if flush else 0)
    finally:
        torch.set_flush_denormal(False)


WAITING_CALLS: list[Callable[[_native.RowGroup], object]] = [
    _native.RowGroup.counters,
    _native.RowGroup.table_counters,
    _native.RowGroup.memory_bytes,
    _native.RowGroup.take_gone,
    _native.RowGroup.clock,
    lambda group: group.num_rows(0),
    lambda group: group.num_in_flight,
    lambda group: group.list_gone(False),
    lambda group: group.restore_clock(0, np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.int64)),
]


@pytest.mark.parametrize("call", WAITING_CALLS)
def test_python_goes_on_while_a_call_waits_for_the_rows(call: Callable[[_native.RowGroup], object]) -> None:
    group = _native.RowGroup(4, False, "sgd", None, [_native.TableInit(1, 2, "normal", 0.0, 0.1)])
    keys = np.arange(100_000, dtype=np.uint64)
    records = np.ones((keys.size, 4), dtype=np.float32)
    beats, stop = [0], threading.Event()

    def beat() -> None:
        while not stop.wait(0.0002):
            beats[0] += 1

    def beats_during_call() -> int:
        importing = threading.Thread(target=group.import_rows, args=(0, keys, records))
        importing.start()
        before = beats[0]
        call(group)
        during = beats[0] - before
        importing.join()
        return during

    interval = sys.getswitchinterval()
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        sys.setswitchinterval(1000)  # nobody gives up the interpreter but of its own accord
        assert any(beats_during_call() > 0 for _ in range(50))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        heart.join()
