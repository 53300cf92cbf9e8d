"""torch.distributed by other names: the one module that calls its functions, some of which change theirs in 2.13.

Buffers are NumPy arrays of uint8 or torch tensors on the CPU; none is copied here.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

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
        if hasattr(sharded, "set_reduce_scatter_unused_params"):  # of 2.13; before, all ranks must use the same ones
            sharded.set_reduce_scatter_unused_params(True)


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


def exchange_numbers(numbers: Sequence[int], group: Group) -> list[int]:
    """numbers[q] goes to rank q; what each rank had for this one."""
    sent, received = torch.tensor(numbers).unsqueeze(1), torch.tensor(numbers).unsqueeze(1)
    swap(sent.unbind(), received.unbind(), group)
    return [int(number) for number in received]


_LOST = re.compile(r"gloo/|Connection (closed|reset|refused)|Broken pipe|timed out|[Tt]imeout|failed to pass", re.I)


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether torch's error says that another rank has gone or does not answer, rather than that a call was wrong."""
    return isinstance(error, dist.DistError) or _LOST.search(str(error)) is not None


def as_tensor(array: Bytes) -> Tensor:
    """The same memory, which is only read, and must outlive the tensor where it is read-only."""
    if array.flags.writeable or not array.size:
        return torch.from_numpy(array if array.size else array.copy())
    return torch.frombuffer((ctypes.c_uint8 * array.size).from_address(array.ctypes.data), dtype=torch.uint8)
