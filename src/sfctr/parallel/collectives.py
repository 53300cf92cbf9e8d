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
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch._C._distributed_c10d import Store as Store

from sfctr.spec.peers import Bytes

Group = dist.ProcessGroup


def open_store(address: str, port: int, *, host: bool, timeout_s: float, prefix: str) -> Store:
    """A connection to the store at address:port, which this process holds if `host`; keys begin by `prefix`."""
    store = TCPStore(address, port, None, is_master=host, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    return PrefixStore(f"sfctr{prefix}", store)


def begin(store: Store, rank: int, size: int, timeout_s: float) -> None:
    """Make torch's default group, of gloo. Collective."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))


def end() -> None:
    """Close every group: whoever waits for this process learns at once that it has gone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for every rank."""
    dist.barrier()


def new_group(ranks: Sequence[int], timeout_s: float) -> Group:
    """A gloo group of some ranks, with connections of its own. Collective over all ranks of the run."""
    group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), backend="gloo")
    assert isinstance(group, Group)
    return group


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
