"""FBGEMM's table-batched embeddings on the CPU in bench_step.py. Runs in TorchRec's environment."""

from __future__ import annotations

import numpy as np
import step_data as data
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from step_data import B, Case, F
from step_serve import serve

RULES = {
    "sgd": EmbOptimType.EXACT_SGD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
}
EPS = {"rowwise_adagrad": 1e-8, "adagrad": 1e-10}
"""As ours have it."""


class Fbgemm:
    def __init__(self, case: Case) -> None:
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(case.each, case.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * F,
            optimizer=RULES[case.rule],
            learning_rate=data.LR,
            eps=EPS.get(case.rule, 0.0),
            pooling_mode=PoolingMode.SUM,
            stochastic_rounding=False,
        )
        for feature, weights in enumerate(self._tables.split_embedding_weights()):
            for first, rows in data.first_rows(case, feature):
                weights[first : first + len(rows)].copy_(torch.from_numpy(rows))
        offsets = torch.from_numpy(data.offsets(case, F * B))
        self._batches = [(torch.from_numpy(np.concatenate(ids)), offsets) for ids in data.ids(case)]
        # [B, F * D], as its output has them
        self._gradient = torch.from_numpy(np.ascontiguousarray(data.gradients(case).transpose(1, 0, 2)).reshape(B, -1))

    def step(self, batch: int) -> None:
        self._tables(*self._batches[batch]).backward(self._gradient)

    def pooled(self, batch: int) -> np.ndarray:
        with torch.no_grad():
            return self._tables(*self._batches[batch]).numpy().reshape(B, F, -1).transpose(1, 0, 2)


if __name__ == "__main__":
    serve(Fbgemm, torch.set_num_threads)
