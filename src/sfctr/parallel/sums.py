"""Sums over ranks that add in the order of ranks, so that they are the same on all of them and at every attempt.

P ranks, n numbers
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError
from sfctr.spec.peers import Bytes, Peers

F64 = npt.NDArray[np.float64]


def to_bytes(tensor: Tensor) -> Bytes:
    """Its elements in order; the tensor's own memory where that is contiguous and on the CPU."""
    flat: Bytes = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return flat


def from_bytes(data: Bytes, like: Tensor) -> Tensor:
    """The elements again, [n], of like's dtype, on the CPU."""
    return torch.from_numpy(data).view(like.dtype) if data.size else torch.empty(0, dtype=like.dtype)


def gather_numbers(peers: Peers, kind: str, mine: F64) -> F64:
    """float64 [P, n]: the n numbers of every rank."""
    return np.stack([part.view(np.float64) for part in peers.gather(kind, mine.view(np.uint8))])


def sum_in_place(peers: Peers, kind: str, flat: Tensor) -> None:
    """Replace a tensor [n] on the CPU, of equal n on all ranks, by its sum over them: each sums a piece for all."""
    rank, size, width = peers.rank, peers.size, flat.element_size()
    bounds = [flat.numel() * q // size for q in range(size + 1)]
    pieces = [flat[bounds[q] : bounds[q + 1]] for q in range(size)]
    mine = pieces[rank].numel() * width
    arrived = peers.exchange(kind, [to_bytes(piece) for piece in pieces], [mine] * size)
    total = from_bytes(arrived[0], flat).clone()
    for part in arrived[1:]:
        total += from_bytes(part, flat)
    lengths = [piece.numel() * width for piece in pieces]
    for piece, part in zip(pieces, peers.exchange(kind, [to_bytes(total)] * size, lengths), strict=True):
        piece.copy_(from_bytes(part, flat))


def sum_gradients(peers: Peers, parameters: Sequence[nn.Parameter]) -> None:
    """Give every parameter the sum of its gradients over the ranks of `peers`; one that has none there counts as zero,
    and has one afterwards."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise ModelError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which several processes cannot"
                " sum; leave out sparse=True of its embedding, or use a table"
            )
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for group in by_dtype.values():
        flat = torch.cat([_gradient(parameter).reshape(-1).cpu() for parameter in group])
        sum_in_place(peers, "dense", flat)
        for parameter, total in zip(group, torch.split(flat, [p.numel() for p in group]), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(total.view_as(parameter))


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def square_sum(tensors: Iterable[Tensor]) -> float:
    """In float64, of all elements."""
    return sum(float(tensor.detach().double().square().sum()) for tensor in tensors)
