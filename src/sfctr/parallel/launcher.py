"""Starts the processes of this machine by torch's elastic launcher, which starts them anew when one fails.

What it needs in the environment is set by whoever calls it.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

from sfctr.spec.errors import PeerError, Terminated

SHUTDOWN_S = 300
"""How long processes that are asked to end may take for it: they save what the run needs to go on."""


def launch(
    program: Sequence[str],
    *,
    processes: int,
    restarts: int,
    nodes: int = 1,
    node_rank: int | None = None,
    rendezvous: str | None = None,
) -> int:
    """Run `program`, what follows `python`, in `processes` processes on each of `nodes` machines; the exit code of the
    one that failed first, or 0.

    rendezvous: host:port where machines meet; one machine needs none. node_rank: 0 holds that place; None: the machine
    whose address it is. Raises PeerError where a signal ended a process, and KeyboardInterrupt or Terminated where one
    ended this.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.run import get_args_parser, parse_args, run

    place = ["--standalone"] if rendezvous is None else _meeting(rendezvous, nodes, node_rank)
    options = [*place, "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    if "--shutdown-timeout" in get_args_parser().format_help():  # of torch 2.13 on
        options += ["--shutdown-timeout", str(SHUTDOWN_S)]
    length = 2 if program[0] == "-m" else 1
    arguments = parse_args([*options, *program[:length]])  # type: ignore[no-untyped-call]
    arguments.training_script_args = list(program[length:])  # not read here: --run would be taken for --run-path
    try:
        run(arguments)  # type: ignore[no-untyped-call]
    except (RendezvousError, OSError) as error:
        where = "the other machines" if rendezvous is None else rendezvous
        raise PeerError(
            f"nobody answers at {where} ({str(error).splitlines()[0].rstrip('.')}); start the machine of that address"
            " first, and see that it can be reached"
        ) from None
    except SignalException as stopped:
        raise (KeyboardInterrupt if stopped.sigval == signal.SIGINT else Terminated)() from None
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            raise PeerError(
                f"rank {rank} (pid {failure.pid}) was ended by {signal.Signals(-failure.exitcode).name}, and"
                f" {restarts} restarts were used up; see what ended it (memory that ran out does so by SIGKILL)"
            ) from None
        return failure.exitcode
    return 0


def _meeting(rendezvous: str, nodes: int, node_rank: int | None) -> list[str]:
    host, _, port = rendezvous.rpartition(":")
    options = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous, "--rdzv-id", "sfctr"]
    if node_rank is not None:
        options += ["--rdzv-conf", f"is_host={int(node_rank == 0)}"]
    address = address_towards(host, int(port))
    return options if address is None else [*options, "--local-addr", address]


def address_towards(host: str, port: int) -> str | None:
    """The address by which this machine reaches another one; None where it cannot tell."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((host, port))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return None


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
