"""What `torchrun` and `sfctr launch` tell a process about the others by its environment, and the meeting with them."""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from sfctr.spec.errors import ConfigError, PeerError, SfctrError
from sfctr.telemetry import notice

if TYPE_CHECKING:
    from sfctr.parallel.world import World

MISTAKE = "SFCTR_MISTAKE"
"""Where `sfctr launch` has its processes note that a mistake of the user's ended one: then no attempt would help."""
LAUNCHER = "SFCTR_LAUNCHER"
"""Where `sfctr launch` tells its processes its number."""
PARENT_S = 1.0
"""Seconds between looks at whether the launcher is still there."""


@dataclass(frozen=True)
class Place:
    """Who this process is among those that were started together.

    shared_store: the launcher holds the store that they meet at, and keeps it over attempts. job: the launcher's name
    for all attempts together, "" of another launcher.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    restarts: int = 0
    max_restarts: int | None = None
    shared_store: bool = False
    job: str = ""


@dataclass(frozen=True)
class Joined:
    """What a command has of the other processes. restarted: all of them were started anew after one had failed.

    job: the launchers of all of them, a line each.
    """

    world: World
    restarted: bool
    job: str


def place_of(environment: Mapping[str, str]) -> Place | None:
    """None where no launcher has started this process. Raises ConfigError where it said half of what is needed."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None

    def number(name: str, default: str | None = None) -> int:
        value = environment.get(name, default)
        if value is None or not value.isdecimal():
            raise ConfigError(
                f"RANK is set in the environment, as a launcher does, and {name} is {value!r}; start with 'sfctr"
                " launch' or torchrun, or unset RANK"
            )
        return int(value)

    maximum = environment.get("TORCHELASTIC_MAX_RESTARTS", "")
    return Place(
        rank=number("RANK"),
        size=number("WORLD_SIZE"),
        local_rank=number("LOCAL_RANK", "0"),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=number("MASTER_PORT"),
        restarts=number("TORCHELASTIC_RESTART_COUNT", "0"),
        max_restarts=int(maximum) if maximum.isdecimal() else None,
        shared_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        job=environment.get("TORCHELASTIC_RUN_ID", ""),
    )


@contextmanager
def joined(*, timeout_s: float, device: str = "cpu") -> Iterator[Joined | None]:
    """The other processes of this one's job, met and left; None where it has none.

    Ranks other than 0 say nothing but their errors. Where the launcher goes away, and where this process is still there
    some seconds after another one has failed, it ends.
    """
    place = place_of(os.environ)
    if place is None:
        yield None
        return
    if os.path.exists(os.environ.get(MISTAKE, "")):
        raise typer.Exit(2)  # said already
    from sfctr.parallel.world import World

    _choose_interface(place)
    _follow_parent()
    attempt = f"/{place.restarts}" if place.shared_store else ""
    with ExitStack() as stack:
        if place.rank:
            stack.enter_context(_silence())
        world = stack.enter_context(
            World.join(
                rank=place.rank,
                size=place.size,
                local_rank=place.local_rank,
                address=place.address,
                port=place.port,
                timeout_s=timeout_s,
                device=device,
                hosts_store=False if place.shared_store else None,
                attempt=attempt,
                on_failure=_give_up,
            )
        )
        _warn_of_shared_store(place)
        # Launchers of different machines count restarts differently.
        launch = world.peers("launch")
        counts = launch.gather("launch", _as_bytes(place.restarts))
        again = any(int.from_bytes(bytes(count), "little") for count in counts)
        names = {bytes(name).decode() for name in launch.gather("launch", _name_of_launcher(place.job))}
        yield Joined(world, again, "\n".join(sorted(names)))


def _name_of_launcher(job: str) -> Any:
    """Of the launcher that has started this process, and of no other one."""
    import numpy as np

    words = f"{job} {platform.node()} {os.getppid()} {_began(os.getppid())}"
    return np.frombuffer(words.encode(), dtype=np.uint8)


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did: with its number a name that no other one has."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return "-"


def note_mistake(error: BaseException) -> None:
    """Have the launcher's further attempts end at once, where it was a mistake of the user's."""
    path = os.environ.get(MISTAKE)
    if path and isinstance(error, SfctrError) and not isinstance(error, PeerError):
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(error))


def _as_bytes(number: int) -> Any:
    import numpy as np

    return np.frombuffer(number.to_bytes(8, "little"), dtype=np.uint8)


def _warn_of_shared_store(place: Place) -> None:
    if place.rank == 0 and place.shared_store and place.max_restarts != 0:
        notice(
            "torchrun keeps one store over restarts, in which a restarted job may hang; set"
            " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun starts, or use 'sfctr launch'"
        )


def _choose_interface(place: Place) -> None:
    """Have gloo use the network by which rank 0 is reached; by itself it uses the one that the host's name stands for,
    which is often none that others can reach."""
    from sfctr.parallel.launcher import address_towards, interface_of

    if "GLOO_SOCKET_IFNAME" not in os.environ:
        address = address_towards(place.address, place.port)
        name = None if address is None else interface_of(address)
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _follow_parent() -> None:
    """End this process when the launcher has gone: nobody else would, and it would train on beside its successor."""
    parent = int(os.environ.get(LAUNCHER, os.getppid()))  # it may have gone by now

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_S)
        print("sfctr: error: the launcher of this process has ended, and so does it", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)  # it may keep what it has learnt, unless it waits for another rank
        os._exit(143)

    threading.Thread(target=follow, name="sfctr-parent", daemon=True).start()


def _give_up(words: str) -> None:
    print(f"sfctr: error: {words}", file=sys.stderr, flush=True)
    os._exit(2)


@contextmanager
def _silence() -> Iterator[None]:
    """Notices and results go nowhere."""
    log = logging.getLogger("sfctr")

    def refuse(record: logging.LogRecord) -> bool:
        return False

    log.addFilter(refuse)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        log.removeFilter(refuse)
