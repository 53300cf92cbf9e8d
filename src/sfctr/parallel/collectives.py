"""torch.distributed by other names: the one module that calls its functions, some of which change theirs in 2.13.

Buffers are NumPy arrays of uint8 or torch tensors on the CPU; none is copied here.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch._C._distributed_c10d import Store as Store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from sfctr.spec.peers import Bytes

Group = dist.ProcessGroup


def open_store(address: str, port: int, *, host: bool, timeout_s: float, prefix: str) -> Store:
    """A connection to the store at address:port, which this process holds if `host`; keys begin by `prefix`."""
    store = TCPStore(address, port, None, is_master=host, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    return PrefixStore(f"sfctr{prefix}", store)


def begin(store: Store, rank: int, size: int, *, timeout_s: float, device: str) -> None:
    """Make torch's default group: gloo, and NCCL for tensors on a GPU. Collective."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))


def end() -> None:
    """Close every group: whoever waits for this process learns at once that it has gone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for every rank."""
    dist.barrier()


def shard(module: nn.Module, blocks: Sequence[nn.Module], device: str) -> None:
    """Give each rank a part of every parameter, by its dim 0; gradients are summed over ranks. blocks: whose parameters
    are gathered at once, each on its own; the rest of the module's at its beginning. Collective."""
    mesh = init_device_mesh(device.split(":")[0], (dist.get_world_size(),), mesh_dim_names=("data",))
    for block in [*blocks, module]:
        block.register_forward_hook(_no_view)
        sharded = fully_shard(block, mesh=mesh)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # else a division within the sum, which gloo has not
        if hasattr(sharded, "set_reduce_scatter_unused_params"):  # of 2.13; before, all ranks must use the same ones
            sharded.set_reduce_scatter_unused_params(True)
    module.register_forward_pre_hook(_hide, prepend=True, with_kwargs=True)
    module.register_forward_pre_hook(_show, with_kwargs=True)


class _Hidden:
    """Not a dataclass: torch looks into those."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


def _hide(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Keep what the module is given from the hook of torch's that comes next: it ties every input to the module, and
    those that the module does not use would have gradients of zero where they have none."""
    return (_Hidden(args, kwargs),), {}


def _show(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """After that hook."""
    return args[0].args, args[0].kwargs


def _no_view(module: nn.Module, given: object, output: object) -> object:
    """What autograd's hooks on the output need: changed in place, a view would lose them."""
    return output.clone() if isinstance(output, Tensor) and output._is_view() else output


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, in its memory."""
    assert isinstance(tensor, DTensor)
    local: Tensor = tensor._local_tensor
    return local


def new_group(ranks: Sequence[int], timeout_s: float) -> Group | None:
    """A gloo group of some ranks, with connections of its own; None in others. Collective over all ranks of the run."""
    group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), backend="gloo")
    return group if isinstance(group, Group) else None


def swap(parts: Sequence[Tensor | None], into: Sequence[Tensor | None], group: Group) -> None:
    """parts[q] goes to rank q of the group, and what q sends comes to into[q]; None or empty: nothing is sent.

    One message each way for each pair, so that nothing is laid side by side first, and none is bound to 2 GB in all.
    """
    works: list[Any] = []
    rank, size = group.rank(), group.size()
    for distance in range(1, size):
        source, target = (rank - distance) % size, (rank + distance) % size
        coming, going = into[source], parts[target]
        if coming is not None and coming.numel():
            works.append(dist.irecv(coming, group=group, group_src=source))
        if going is not None and going.numel():
            works.append(dist.isend(going, group=group, group_dst=target))
    for work in works:
        work.wait()


HEAD_BYTES = 1024
"""Of the first message for each rank: the length of what it is to get, and the beginning of it."""


def exchange(parts: Sequence[Bytes], lengths: Sequence[int] | None, group: Group) -> list[Bytes]:
    """parts[q] goes to rank q, and what q had for this rank comes back. lengths: of what comes; where they are not
    known, a first message of one size has them, and all of what is short."""
    rank, begun = group.rank(), 0
    if lengths is None:
        begun = HEAD_BYTES - 8
        heads = [_head(part) for part in parts]
        coming = [np.empty(HEAD_BYTES, dtype=np.uint8) for _ in parts]
        _swap_arrays(heads, coming, group)
        coming[rank] = heads[rank]
        lengths = [int(head[:8].view(np.int64)[0]) for head in coming]
    into = [part if q == rank else np.empty(lengths[q], dtype=np.uint8) for q, part in enumerate(parts)]
    if begun:
        for q, whole in enumerate(into):
            if q != rank:
                whole[:begun] = coming[q][8 : 8 + min(begun, whole.size)]
    _swap_arrays([part[begun:] for part in parts], [whole[begun:] for whole in into], group)
    return into


def _head(part: Bytes) -> Bytes:
    head = np.zeros(HEAD_BYTES, dtype=np.uint8)
    head[:8].view(np.int64)[0] = part.size
    begin = part[: HEAD_BYTES - 8]
    head[8 : 8 + begin.size] = begin
    return head


def _swap_arrays(parts: Sequence[Bytes], into: Sequence[Bytes], group: Group) -> None:
    rank = group.rank()
    swap(
        [as_tensor(part) for part in parts],
        [None if q == rank else as_tensor(part) for q, part in enumerate(into)],
        group,
    )


_LOST = re.compile(r"gloo/|Connection (closed|reset|refused)|Broken pipe|timed out|[Tt]imeout|failed to pass", re.I)


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether torch's error says that another rank has gone or does not answer, rather than that a call was wrong."""
    return isinstance(error, dist.DistError) or _LOST.search(str(error)) is not None


def as_tensor(array: Bytes) -> Tensor:
    """The same memory, which is only read, and must outlive the tensor where it is read-only."""
    if array.flags.writeable or not array.size:
        return torch.from_numpy(array if array.size else array.copy())
    return torch.frombuffer((ctypes.c_uint8 * array.size).from_address(array.ctypes.data), dtype=torch.uint8)
