"""The dense part alone, for bench_end_to_end.py: what no way of keeping rows can be faster than.

In the place of rows it has a ready tensor [B, F, D] that wants a gradient.

    python end_to_end_dense.py RANK SIZE PORT FOLDER    (jobs on stdin, see end_to_end_parts.Server)
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from pathlib import Path

import torch
from end_to_end_parts import DIM, NUM_IDS, Batches, Case, DenseStep, serve_contender


class Dense:
    def __init__(self, folder: Path, case: Case) -> None:
        self._batches, self._dense = Batches(folder, case), DenseStep(case)
        self._vectors = (torch.randn(case.batch, NUM_IDS, DIM) * 0.01).requires_grad_()

    def steps(self, first: int, setting: dict[str, int]) -> Generator[float, None, None]:
        for number in count(first):
            _, numbers, labels = self._batches[number]
            loss = self._dense.loss(numbers, self._vectors, labels)
            loss.backward()
            self._dense.optimizer.step()
            self._dense.optimizer.zero_grad(set_to_none=True)
            self._vectors.grad = None
            yield float(loss.detach())


if __name__ == "__main__":
    serve_contender(Dense)
