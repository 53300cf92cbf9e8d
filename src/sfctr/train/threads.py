"""How many threads sfctr's kernels take where train.threads is "auto": tried in a run's first steps.

They change no number, so a run begins with the cores that torch leaves, has its first steps done by several numbers of
threads in turn, and goes on with the quickest. For torch's own threads, which do change numbers, see torch_threads.py.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import torch

from sfctr.spec.runfile import Train
from sfctr.telemetry import current

MOST_CORES = 16
"""More threads than these are chosen by whoever has them."""
WARM, BLOCK, ROUNDS = 6, 5, 3
"""Steps that are not counted at first; steps in a row with as many threads, of which the first is not counted; and how
often each number of threads has its turn."""
LEAST_GAIN = 0.03
"""Share of a step from which on a number other than the first one is taken."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_threads(train: Train, sharers: int = 1) -> int:
    """Threads of sfctr's kernels that a run begins with: as it says, else the cores that torch leaves of those that it
    has, where so many processes of one run share the machine."""
    if isinstance(train.threads, int):
        return train.threads
    of_torch = train.torch_threads if isinstance(train.torch_threads, int) else torch.get_num_threads()
    return max(1, min(cores() // sharers, MOST_CORES) - of_torch)


def candidates(first: int, most: int) -> tuple[int, ...]:
    """Numbers of threads to try, `first` at first: one, half and all of the cores."""
    return tuple(dict.fromkeys((first, *(n for n in (1, most // 2, most) if n >= 1))))


class KernelThreads:
    """Chooses among numbers of threads by the times of a run's first steps. `step_ended` is called after each.

    numbers: the first is in use. use: has kernels use so many from now on. say: takes the line that says what was
    chosen, and why. clock: for tests.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        use: Callable[[int], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._use, self._say, self._clock = use, say, clock
        self._turns = list(numbers) * ROUNDS if len(numbers) > 1 else []
        self._seconds: dict[int, list[float]] = {number: [] for number in numbers}
        self._before = 0.0
        self._steps = -WARM

    def step_ended(self) -> None:
        if not self._turns:
            return
        now = self._clock()
        turn, step = divmod(self._steps, BLOCK)
        if self._steps >= 0 and step > 0:
            self._seconds[self._turns[turn]].append(now - self._before)
        self._before = now
        self._steps += 1
        if self._steps == len(self._turns) * BLOCK:
            self._choose()
        elif self._steps >= 0 and self._steps % BLOCK == 0:
            self._use(self._turns[self._steps // BLOCK])

    def _choose(self) -> None:
        chosen = quickest(self._seconds, LEAST_GAIN)
        self._turns = []
        self._use(chosen)
        current().count("kernel threads", chosen)
        self._say(f"threads: {chosen} for sfctr's kernels, because {because(self._seconds, chosen)}")


def quickest(seconds: Mapping[int, Sequence[float]], least_gain: float) -> int:
    """The number whose steps took least by their median; the first one unless another gains enough."""
    medians = {number: statistics.median(took) for number, took in seconds.items()}
    first = next(iter(medians))
    best = min(medians, key=lambda number: medians[number])
    return best if medians[best] < (1 - least_gain) * medians[first] else first


def because(seconds: Mapping[int, Sequence[float]], chosen: int) -> str:
    """Why, in words."""
    milliseconds = {number: f"{statistics.median(took) * 1e3:.1f} ms" for number, took in seconds.items()}
    others = " and ".join(f"{words} with {number}" for number, words in milliseconds.items() if number != chosen)
    return f"a step takes {milliseconds[chosen]} with {chosen}, {others}"
