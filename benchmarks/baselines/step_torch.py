"""Plain torch in bench_step.py: nn.EmbeddingBag(sparse=True), one a table, and torch's Adagrad or SparseAdam."""

from __future__ import annotations

import numpy as np
import step_data as data
import torch
from step_data import Case, F
from step_serve import serve
from torch import nn

RULES = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam, "sgd": torch.optim.SGD}


class Bags:
    def __init__(self, case: Case) -> None:
        self._bags = [_bag(case, feature) for feature in range(F)]
        self._optimizer = RULES[case.rule]([bag.weight for bag in self._bags], lr=data.LR)
        self._offsets = torch.from_numpy(data.offsets(case))
        self._batches = [[torch.from_numpy(keys) for keys in ids] for ids in data.ids(case)]
        self._gradients = [torch.from_numpy(rows) for rows in data.gradients(case)]

    def _forward(self, batch: int) -> list[torch.Tensor]:
        return [bag(ids, self._offsets) for bag, ids in zip(self._bags, self._batches[batch], strict=True)]

    def step(self, batch: int) -> None:
        torch.autograd.backward(self._forward(batch), self._gradients)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def pooled(self, batch: int) -> np.ndarray:
        with torch.no_grad():
            return torch.stack(self._forward(batch)).numpy()


def _bag(case: Case, feature: int) -> nn.EmbeddingBag:
    weights = torch.empty(case.each, case.dim)
    for first, rows in data.first_rows(case, feature):
        weights[first : first + len(rows)] = torch.from_numpy(rows)
    return nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True, include_last_offset=True)


if __name__ == "__main__":
    serve(Bags, torch.set_num_threads)
