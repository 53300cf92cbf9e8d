"""The dense part of a model on many ranks, applied to a plain module from outside.

Each rank runs its own rows of the batch. The loss is already divided by the weights of the whole batch, so gradients
are summed over ranks, never averaged. What mixes rows, or draws for them, does so over those of all ranks: batch norm
and dropout are replaced by such that give what one process with all rows would.

  P ranks, n numbers, B rows of this rank
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from sfctr.spec.errors import ConfigError, ModelError
from sfctr.spec.runfile import Parallel

from . import collectives
from .batch_norm import widen_batch_norms
from .dropout import Rows, key_by_row
from .split import Share, split_pairs
from .sums import F64, from_bytes, gather_numbers, square_sum, sum_gradients, to_bytes
from .world import World


class DenseParallel:
    """Made by parallelise().

    parameters: what the optimizer is to update, by name ("model.<name>", "table.<table>.<name>"): the modules' own, or
        this rank's parts of them.
    needs_every_rank: whether training's forward waits for the other ranks or draws what they draw, so that a rank
        without rows must run it, too, on an empty batch; scores_on_every_rank: the same of evaluation.
    """

    def __init__(self, model: nn.Module, options: Parallel, world: World, tables: Mapping[str, nn.Module]) -> None:
        self.model, self._world, self._rows = model, world, Rows()
        self._peers = world.peers("dense")
        self._across = self._peers
        """The ranks that have the same parts of what is split."""
        self.shares: dict[str, Share] = {}
        """By the name in `parameters`; those that are not here are whole on every rank."""
        modules = {"model": model, **{f"table.{name}": table for name, table in tables.items()}}
        _make_equal(modules, self)
        has_dropout = key_by_row(model, self._rows)
        has_norms = widen_batch_norms(model, self._peers)
        if options.tensor > 1:
            self._split(options.tensor)
        self.parameters = {
            f"{prefix}.{name}": parameter
            for prefix, module in modules.items()
            for name, parameter in module.named_parameters()
        }
        self._sharded: dict[str, nn.Parameter] = {}
        if options.dense == "fsdp":
            self._shard()
        self.needs_every_rank = has_norms or has_dropout or bool(self.shares)

    @property
    def scores_on_every_rank(self) -> bool:
        return bool(self.shares)

    @contextmanager
    def rows(self, whole: int, places: Tensor) -> Iterator[None]:
        """Around forward and backward: the B rows run through the model stand at `places` int64 [B] of a batch of
        `whole` rows."""
        self._rows.whole, self._rows.places = whole, places
        try:
            with self._world.answering("model"):
                yield
        finally:
            self._rows.whole, self._rows.places = 0, None

    def reduce(self, extras: F64) -> F64:
        """Sum every parameter's gradient over ranks, and give float64 [P, n], the extras [n] of every rank.

        A parameter without a gradient on every rank has none afterwards. Raises ModelError for a sparse gradient.
        """
        self._take_sharded()
        wanted = {name: p for name, p in self.parameters.items() if p.requires_grad}
        has_gradient = [float(parameter.grad is not None) for parameter in wanted.values()]
        sum_gradients(self._peers, [p for name, p in wanted.items() if name not in self.shares])
        if self._across is not self._peers:
            sum_gradients(
                self._across, [p for name, p in wanted.items() if name in self.shares and name not in self._sharded]
            )
        every = gather_numbers(self._peers, "dense", np.array([*has_gradient, *extras], dtype=np.float64))
        for parameter, how_many in zip(wanted.values(), every[:, : len(wanted)].sum(0).tolist(), strict=True):
            if not how_many:
                parameter.grad = None
            elif parameter.grad is None:  # of a part that is all zero
                parameter.grad = torch.zeros_like(parameter)
        return every[:, len(wanted) :]

    def _take_sharded(self) -> None:
        """Give the parts their gradients, which are summed already. One that no rank used has zeros: where all of it is
        zero on all ranks it is taken to have none."""
        for name, sharded in self._sharded.items():
            gradient = None if sharded.grad is None else collectives.local_part(sharded.grad)
            self.parameters[name].grad = gradient if gradient is not None and gradient.any() else None
            sharded.grad = None

    def square_norm(self) -> float:
        """Sum of squares of all gradients, after reduce(); the same on every rank. Collective where a part is split."""
        own = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        total = square_sum(gradient for name, gradient in own.items() if name not in self.shares)
        if self.shares:
            split = np.array([square_sum(gradient for name, gradient in own.items() if name in self.shares)])
            peers = next(iter(self.shares.values())).peers
            total += sum(float(part) for part in gather_numbers(peers, "dense", split)[:, 0])
        return total

    def state_dict(self) -> dict[str, Tensor]:
        """The model's, with whole tensors. Collective where a part is split."""
        return {name: self.whole(f"model.{name}", _plain(value)) for name, value in self.model.state_dict().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take whole tensors, by the names of the model's state_dict()."""
        own = self.model.state_dict()
        assert set(own) == set(state), sorted(set(own) ^ set(state))
        for name, value in own.items():
            _plain(value).copy_(self.part(f"model.{name}", state[name]))

    def whole(self, name: str, part: Tensor) -> Tensor:
        """The whole of a tensor of which every rank has that part which it has of parameter `name` (itself, a moment of
        it); one of another shape is no part (a count of steps) and given back. Collective where it is split."""
        share = self.shares.get(name)
        return part if share is None or part.shape != self.parameters[name].shape else share.join(part)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a tensor of the whole shape of parameter `name`; else the tensor as it is."""
        share = self.shares.get(name)
        if share is None or whole.dim() != self.parameters[name].dim() or whole.dim() == 0:
            return whole
        return share.of(whole)

    def _split(self, tensor: int) -> None:
        size = self._world.size
        together = [list(range(first, first + tensor)) for first in range(0, size, tensor)]
        across = [list(range(first, size, tensor)) for first in range(tensor)]
        peers = self._world.peers_among("tensor", together)
        self._across = self._world.peers_among("data", across)
        self.shares = {f"model.{name}": share for name, share in split_pairs(self.model, peers, self._rows).items()}

    def _shard(self) -> None:
        scalar = next((name for name, p in self.model.named_parameters() if p.dim() == 0), None)
        if scalar is not None:
            raise ConfigError(
                f'parallel.dense is "fsdp" and the model\'s parameter {scalar} has no dim to be split by; make it of'
                ' shape (1,), or choose parallel.dense = "ddp"'
            )
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        blocks = [module for module in self.model.modules() if isinstance(module, nn.Sequential) and _is_mlp(module)]
        collectives.shard(self.model, [block for block in blocks if block is not self.model], self._world.device)
        for name, parameter in self.model.named_parameters():
            step = -(-shapes[name][0] // self._world.size)
            bounds = tuple(min(step * rank, shapes[name][0]) for rank in range(self._world.size + 1))
            key = f"model.{name}"
            self.shares[key] = Share(0, bounds, self._peers)
            self._sharded[key] = parameter
            self.parameters[key] = nn.Parameter(collectives.local_part(parameter.data), parameter.requires_grad)


def parallelise(
    model: nn.Module, options: Parallel, world: World, tables: Mapping[str, nn.Module] | None = None
) -> DenseParallel:
    """Make `model`, and the dense tables by name, the dense part of all ranks: they begin as rank 0 has them.

    Collective. Changes the model in place. Raises ConfigError for options that do not go together, ModelError for a
    model that cannot be run so or is not the same on all ranks.
    """
    if options.tensor > 1 and options.dense == "fsdp":
        raise ConfigError(
            f'parallel.tensor is {options.tensor} and parallel.dense is "fsdp", which would both split the same'
            ' weights; set tensor = 1 or dense = "ddp"'
        )
    if world.size % options.tensor:
        raise ConfigError(
            f"parallel.tensor is {options.tensor} and {world.size} processes train, which is no multiple of it; start"
            f" {-(-world.size // options.tensor) * options.tensor}, or set parallel.tensor to a divisor"
        )
    return DenseParallel(model, options, world, tables or {})


def _make_equal(modules: Mapping[str, nn.Module], dense: DenseParallel) -> None:
    """Give every rank rank 0's parameters and buffers."""
    peers = dense._peers
    tensors = {
        f"{prefix}.{name}": tensor
        for prefix, module in modules.items()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }
    shapes = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()]
    every = peers.gather("dense", np.frombuffer(json.dumps(shapes).encode(), dtype=np.uint8))
    for rank, theirs in enumerate(every):
        if bytes(theirs) != bytes(every[0]):
            first, other = ({name: rest for name, *rest in json.loads(bytes(d))} for d in (every[0], theirs))
            name = next(n for n in [*first, *other] if first.get(n) != other.get(n))
            raise ModelError(
                f"the model is not the same on all ranks: {name} is {_words(first.get(name))} on rank 0 and"
                f" {_words(other.get(name))} on rank {rank}; build it from the run file alone"
            )
    with torch.no_grad():
        for tensor in tensors.values():
            data = to_bytes(tensor)
            sent = [data if peers.rank == 0 else data[:0]] * peers.size
            arrived = peers.exchange("dense", sent, [data.nbytes] + [0] * (peers.size - 1))
            tensor.copy_(from_bytes(arrived[0], tensor).view(tensor.shape))


def _words(described: list[object] | None) -> str:
    return "absent" if described is None else f"{str(described[1]).removeprefix('torch.')} of shape {described[0]}"


def _is_mlp(layers: nn.Sequential) -> bool:
    return sum(isinstance(layer, nn.Linear) for layer in layers) > 1


def _plain(value: Tensor) -> Tensor:
    return collectives.local_part(value) if hasattr(value, "_local_tensor") else value
