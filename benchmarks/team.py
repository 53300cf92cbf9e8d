"""Processes that wait for jobs and do them together, so that several such teams are measured in turn in one run.

A team that has no job sleeps. `Team.ask(job)` gives the answers of its ranks; it raises TeamFailed, with the last words
of a rank, where one ends or does not answer in time. Processes end with the `with` block.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_LOST = re.compile(r"Connection (closed|reset)|has ended")

HERE = Path(__file__).resolve().parent


class TeamFailed(Exception):
    """A team gave no figures; the message says why."""


class Team:
    """`size` processes of `python script RANK SIZE PORT FOLDER`, one thread each for torch.

    threads: of OpenMP, and so of torch at its start; 0: as many as the machine has. Huge pages are asked for by torch
    too, as sfctr asks for them.
    """

    def __init__(
        self, script: Path, size: int, folder: Path, *, python: Path = Path(sys.executable), threads: int = 1
    ) -> None:
        self.name, self.size = script.stem, size
        self._errors = [tempfile.TemporaryFile("w+") for _ in range(size)]  # noqa: SIM115  see close
        port = _free_port()
        self._ranks = [
            subprocess.Popen(
                [str(python), str(script), str(rank), str(size), str(port), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors[rank],
                text=True,
                env=_environment(python, threads),
            )
            for rank in range(size)
        ]

    def ask(self, job: dict[str, Any], *, timeout_s: float = 300.0) -> list[dict[str, Any]]:
        """What each rank found, in the order of ranks."""
        for rank, process in enumerate(self._ranks):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise self._failed(rank, "has ended") from None
        until = time.monotonic() + timeout_s
        return [self._answer(rank, until) for rank in range(self.size)]

    def _answer(self, rank: int, until: float) -> dict[str, Any]:
        out = self._ranks[rank].stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise self._failed(rank, "did not answer in time")
        line = out.readline()
        if not line:
            raise self._failed(rank, "has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self, rank: int, what: str) -> TeamFailed:
        """The last words are those of a rank that ended by itself, not for want of another one, if there is such."""
        time.sleep(1.0)  # the others are on their way out
        self.kill()
        words = [_last_line(errors) for errors in self._errors]
        own = [(q, line) for q, line in enumerate(words) if line and not _LOST.search(line)]
        said, line = own[0] if own else (rank, words[rank] or "it said nothing")
        return TeamFailed(f"{self.name}: rank {rank} of {self.size} {what}; rank {said} said: {line[:300]}")

    def kill(self) -> None:
        for process in self._ranks:
            process.kill()

    def close(self) -> None:
        """Tell all that there is no further job, and wait for them."""
        for process in self._ranks:
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process, errors in zip(self._ranks, self._errors, strict=True):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self.close()


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _environment(python: Path, threads: int) -> dict[str, str]:
    own = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "THP_MEM_ALLOC_ENABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    if threads:
        own["OMP_NUM_THREADS"] = str(threads)
    others = dict(os.environ)
    paths = [str(HERE)]
    if python == Path(sys.executable) and "PYTHONPATH" in others:  # which a rival's environment must not see
        paths.append(others["PYTHONPATH"])
    return others | own | {"PYTHONPATH": os.pathsep.join(paths)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
