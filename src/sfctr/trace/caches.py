"""Hit rates of caches of any size over one table, from all of its accesses or from those to a sample of its keys.

  C sizes

A sample of a share s of the keys behaves in a cache of s * size rows as all keys do in one of `size` rows (miniature
simulation; Waldspurger et al., USENIX ATC 2017). Whether the few most used keys fell into the sample moves the number
of accesses that it has, and hardly the misses; so misses are scaled up, and the number of accesses, which is known
exactly, is not (the correction of SHARDS-adj).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import isqrt

import numpy as np
import numpy.typing as npt

from sfctr import _native
from sfctr.spec.batch import U64

from .accesses import Accesses, Policy

F64 = npt.NDArray[np.float64]

PART_BITS = 3
"""A sample is cut into 2^3 parts, whose answers differ as those of samples do."""


class Caches:
    """log: what was kept of a table. num_accesses: how many accesses it had in all."""

    def __init__(self, log: _native.AccessLog, num_accesses: int) -> None:
        self.kept = Accesses.of_log(log)
        self.share = 0.5**log.halvings
        self._log, self._num_accesses = log, num_accesses

    @property
    def is_sample(self) -> bool:
        return self.share < 1

    @property
    def num_rows(self) -> int:
        """Distinct rows of the table, estimated where a sample was kept."""
        return round(self.kept.num_rows / self.share)

    @property
    def num_repeats(self) -> int:
        """Accesses after a row's first, estimated likewise; 0 where none is known of."""
        return max(self._num_accesses - self.num_rows, 0) if self.kept.num_repeats else 0

    def hit_rates(self, policy: Policy, sizes: Sequence[int], *, window: int = 0) -> F64:
        """float64 [C]: share of the repeats that caches of so many rows have at hand."""
        scaled = np.rint(np.asarray(sizes, dtype=np.float64) * self.share)
        return self._hit_rates(policy, np.clip(scaled, 1, max(self.kept.num_rows, 1)).astype(np.uint64), window)

    def errors(self, policy: Policy, sizes: Sequence[int], *, window: int = 0) -> F64 | None:
        """float64 [C]: standard errors of `hit_rates`, from the answers of disjoint parts of the sample; None where
        nothing was left out, and there is no error."""
        if not self.is_sample:
            return None
        answers = [part.hit_rates(policy, sizes, window=window) for part in self._parts]
        return np.asarray(np.std(answers, axis=0, ddof=1) / len(answers) ** 0.5)

    def smallest(self, policy: Policy, hit_rate: float, *, window: int = 0) -> int:
        """The fewest rows, to a hundredth, whose cache reaches a hit rate of at most 1."""
        low, high = 0, max(self.kept.num_rows, 1)  # of the sample's rows; a cache of all of them misses no repeat
        while high - low > max(1, high // 100):
            middle = isqrt((low + 1) * high)
            if self._hit_rates(policy, np.array([middle], dtype=np.uint64), window)[0] >= hit_rate:
                high = middle
            else:
                low = middle
        return round(high / self.share)

    def _hit_rates(self, policy: Policy, capacities: U64, window: int) -> F64:
        """Of caches of a sample's size."""
        if policy == "lru":
            hits = self._lru_hits[np.minimum(capacities, self.kept.num_rows)]
        else:
            hits = self.kept.hits(policy, capacities, window=window)
        missed = (self.kept.num_repeats - hits.astype(np.float64)) / self.share
        return np.clip(1.0 - missed / max(self.num_repeats, 1), 0.0, 1.0)

    @cached_property
    def _lru_hits(self) -> U64:
        return self.kept.lru_hits()

    @cached_property
    def _parts(self) -> list[Caches]:
        return [Caches(self._log.part(number, PART_BITS), self._num_accesses) for number in range(1 << PART_BITS)]
