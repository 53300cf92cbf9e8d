"""Machines for a test: network namespaces of this one, each with an address of its own on one bridge. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Machine:
    """A namespace. It has this machine's name and hosts file, so that names find no other one, as in many clusters."""

    name: str
    address: str

    def start(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], words: IO[str] | None = None
    ) -> subprocess.Popen[str]:
        """In a session of its own; what it says goes to `words`, else to a pipe."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            cwd=directory,
            env=environment,
            stdout=words or subprocess.PIPE,
            start_new_session=True,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def slow_down(self, rate: str) -> None:
        """It sends no faster than `rate`, such as "10mbit"."""
        words = [
            "tc",
            "qdisc",
            "add",
            "dev",
            "eth0",
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "32kbit",
            "latency",
            "400ms",
        ]
        subprocess.run(["ip", "netns", "exec", self.name, *words], check=True, capture_output=True, timeout=20)

    def plug_in(self) -> None:
        ip("-n", self.name, "link", "set", "eth0", "up")

    def unplug(self) -> None:
        """Nothing reaches it, or leaves it, any more."""
        ip("-n", self.name, "link", "set", "eth0", "down")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


def why_not() -> str | None:
    """Why this machine cannot hold others, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root"
    name = f"sfctr-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
        ip("link", "add", f"sfb{os.getpid()}", "type", "bridge")
        ip("link", "del", f"sfb{os.getpid()}")
    except (OSError, subprocess.SubprocessError) as error:
        return f"no network namespaces here: {error}"
    return None


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """`count` machines that reach each other, by addresses of 10.77.0.0/24."""
    number = os.getpid()
    bridge, found = f"sfb{number}", list[Machine]()
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for index in range(count):
            machine = Machine(f"sfctr-{number}-{index}", f"10.77.0.{index + 1}")
            ip("netns", "add", machine.name)
            found.append(machine)
            inside, outside = "eth0", f"sfv{number}-{index}"
            ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", machine.name)
            ip("link", "set", outside, "master", bridge, "up")
            ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", inside)
            for device in ("lo", inside):
                ip("-n", machine.name, "link", "set", device, "up")
        yield found
    finally:
        for machine in found:
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True, timeout=20)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, timeout=20)
