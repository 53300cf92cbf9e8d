"""Pairs of an MLP's layers whose weights ranks share in a group: the first by its columns, the second by its rows.

Each rank brings its own rows: they are gathered in the group, go through this rank's columns of the first layer, what
lies between, and its rows of the second; the sum over the group, in the order of ranks, gives each rank its rows back.
(Shoeybi et al. 2019, Megatron-LM, for the pair.) Rows may be uneven, and a rank may have none; names of parameters
stay.

  k ranks of a group, R rows of this rank, G rows of the group, C columns
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfctr.spec.errors import ConfigError
from sfctr.spec.peers import Bytes, Peers

from .dropout import RowDropout, Rows
from .sums import from_bytes, to_bytes

KIND = "activations"
_BY_ELEMENT = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity)


@dataclass(frozen=True)
class Share:
    """What part of a parameter this rank of `peers` has: of `dim`, elements from bounds[rank] to bounds[rank + 1]."""

    dim: int
    bounds: tuple[int, ...]
    peers: Peers

    def of(self, whole: Tensor) -> Tensor:
        first, last = self.bounds[self.peers.rank : self.peers.rank + 2]
        return whole.narrow(self.dim, first, last - first).clone()

    def join(self, part: Tensor) -> Tensor:
        """The whole of what of() took this rank's part, on the CPU. Collective over the peers."""
        shape = list(part.shape)
        found = []
        for rank, data in enumerate(self.peers.gather("state", to_bytes(part))):
            shape[self.dim] = self.bounds[rank + 1] - self.bounds[rank]
            found.append(from_bytes(data, part).view(shape))
        return torch.cat(found, self.dim)


class _Gather(torch.autograd.Function):
    """[R, C] to [G, C]: the rows of all ranks of the group. Backward sums what the ranks found for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Sequence[int], peers: Peers) -> Tensor:
        ctx.counts, ctx.peers = counts, peers
        return _gather(x, counts, peers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _sum_own(gradients[0], ctx.counts, ctx.peers), None, None


class _SumOwn(torch.autograd.Function):
    """[G, C] to [R, C]: this rank's rows, summed over the group. Backward gives every rank the gradients of all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Sequence[int], peers: Peers) -> Tensor:
        ctx.counts, ctx.peers = counts, peers
        return _sum_own(x, counts, peers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _gather(gradients[0], ctx.counts, ctx.peers), None, None


def _gather(x: Tensor, counts: Sequence[int], peers: Peers) -> Tensor:
    row_bytes = x.shape[1] * x.element_size()
    parts = peers.exchange(KIND, [to_bytes(x)] * peers.size, [count * row_bytes for count in counts])
    return torch.cat([from_bytes(part, x).view(-1, x.shape[1]) for part in parts]).to(x.device)


def _sum_own(x: Tensor, counts: Sequence[int], peers: Peers) -> Tensor:
    own, width = counts[peers.rank], x.shape[1]
    parts = [to_bytes(part) for part in torch.split(x, list(counts))]
    arrived = peers.exchange(KIND, parts, [own * width * x.element_size()] * peers.size)
    total = from_bytes(arrived[0], x).clone()
    for part in arrived[1:]:
        total += from_bytes(part, x)
    return total.view(own, width).to(x.device)


class _Group:
    """The ranks that share a pair, and whose rows are in it at the moment."""

    def __init__(self, peers: Peers, rows: Rows) -> None:
        self.peers, self.rows, self.own = peers, Rows(), rows
        self.counts: list[int] = []

    def begin(self, num_rows: int) -> None:
        places = np.arange(num_rows) if self.own.places is None else self.own.places.cpu().numpy()
        mine: Bytes = places.astype(np.int64).view(np.uint8)
        every = [part.view(np.int64) for part in self.peers.gather(KIND, mine)]
        self.counts = [len(part) for part in every]
        self.rows.whole = self.own.whole
        self.rows.places = None if self.own.places is None else torch.from_numpy(np.concatenate(every))


class ColumnLinear(nn.Linear):
    """This rank's columns of a layer, for the rows of its group: [R, in] to [G, columns]."""

    group: _Group

    def forward(self, x: Tensor) -> Tensor:
        self.group.begin(x.shape[0])
        every: Tensor = _Gather.apply(x, self.group.counts, self.group.peers)  # type: ignore[no-untyped-call]
        return super().forward(every)


class RowLinear(nn.Linear):
    """The layer after it, with this rank's columns as its input: [G, columns] to [R, out]."""

    group: _Group

    def forward(self, x: Tensor) -> Tensor:
        part = nn.functional.linear(x, self.weight)
        own: Tensor = _SumOwn.apply(part, self.group.counts, self.group.peers)  # type: ignore[no-untyped-call]
        return own if self.bias is None else own + self.bias


def split_pairs(model: nn.Module, peers: Peers, rows: Rows) -> dict[str, Share]:
    """Split every pair of linear layers that follow each other in a Sequential of the model; the shares by the name of
    the parameter. Raises ConfigError where there is no pair, or something between cannot be split."""
    shares: dict[str, Share] = {}
    for prefix, parent in list(model.named_modules()):
        if isinstance(parent, nn.Sequential):
            for first, between, second in _pairs(parent):
                begin = f"{prefix}." if prefix else ""
                shares |= _split_pair(parent, begin, (first, *between, second), _Group(peers, rows))
    if not shares:
        raise ConfigError(
            f"parallel.tensor is {peers.size} and the model has no two linear layers that follow each other in a"
            " Sequential; leave it at 1"
        )
    return shares


def _pairs(layers: nn.Sequential) -> Iterator[tuple[str, list[str], str]]:
    """Names of the first layer, of what lies between, and of the second, layer by layer without overlap."""
    first: str | None = None
    between: list[str] = []
    for name, layer in layers.named_children():
        if type(layer) is not nn.Linear:
            between.append(name)
        elif first is None:
            first, between = name, []
        else:
            yield first, between, name
            first = None


def _split_pair(parent: nn.Sequential, prefix: str, names: Sequence[str], group: _Group) -> dict[str, Share]:
    first, *between, second = names
    width, size = getattr(parent, first).out_features, group.peers.size
    bounds = tuple(width * q // size for q in range(size + 1))
    by_row, by_column = (Share(dim, bounds, group.peers) for dim in range(2))
    shares = {first: {"weight": by_row, "bias": by_row}, second: {"weight": by_column}}
    for name in between:
        layer = getattr(parent, name)
        if isinstance(layer, nn.PReLU):
            shares[name] = {"weight": by_row} if layer.num_parameters > 1 else {}
        elif type(layer) in (nn.Dropout, RowDropout):
            setattr(parent, name, RowDropout(layer, group.rows, (bounds[group.peers.rank], width)))
        elif not isinstance(layer, _BY_ELEMENT):
            raise ConfigError(
                f"parallel.tensor is {size} and {prefix}{name}, a {type(layer).__name__}, lies between layers that it"
                " would split, and its columns cannot be; take it away, or leave parallel.tensor at 1"
            )
    _become(getattr(parent, first), ColumnLinear, group)
    _become(getattr(parent, second), RowLinear, group)
    found: dict[str, Share] = {}
    for name, parts in shares.items():
        found |= _keep_share(getattr(parent, name), f"{prefix}{name}.", parts)
    return found


def _become(layer: nn.Linear, kind: type[ColumnLinear] | type[RowLinear], group: _Group) -> None:
    layer.__class__ = kind
    assert isinstance(layer, ColumnLinear | RowLinear)
    layer.group = group


def _keep_share(layer: nn.Module, prefix: str, parts: dict[str, Share]) -> dict[str, Share]:
    found: dict[str, Share] = {}
    for name, share in parts.items():
        parameter = getattr(layer, name)
        if parameter is not None:
            parameter.data = share.of(parameter.data)
            found[prefix + name] = share
    return found
