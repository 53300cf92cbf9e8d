"""Several processes for a test: `run_ranks(3, function, 7)` gives what function(world, 7) gave in each of three ranks.

Interpreters with torch loaded are kept for the next test, so only the first waits for them to start. The function is
found by its file and name, so it stands at the top of a module; arguments and results are pickled. What a rank raises
is raised in the test, with that rank's traceback, and every process is killed at the time-out.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

ENVIRONMENT = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",  # or ranks whose shapes differ go unnoticed
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # DETAIL writes a line a call
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


class RankFailed(AssertionError):
    """What went wrong in which rank."""


def run_ranks(
    size: int, function: Callable[..., Any], *args: Any, timeout_s: float = 60, deaths: Collection[int] = ()
) -> list[Any]:
    """What function(world, *args) gives in each rank, `world` being joined, in the order of ranks.

    deaths: ranks that die on the way, by a signal or by leaving; their result is None.
    """
    return _run(size, function, args, timeout_s, deaths, joined=True)


def run_places(
    size: int, function: Callable[..., Any], *args: Any, timeout_s: float = 60, deaths: Collection[int] = ()
) -> list[Any]:
    """The same for function(place, *args); place: what World.join() takes, as a dict."""
    return _run(size, function, args, timeout_s, deaths, joined=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Interpreter:
    """A process that waits for calls at the other end of `pipe`."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()


_idle: list[Interpreter] = []


@atexit.register
def _kill_idle() -> None:
    for interpreter in _idle:
        interpreter.kill()


def _run(
    size: int, function: Callable[..., Any], args: Any, timeout_s: float, deaths: Collection[int], *, joined: bool
) -> list[Any]:
    assert "<locals>" not in function.__qualname__, f"{function.__qualname__} must stand at the top of its module"
    ranks = [_idle.pop() if _idle else Interpreter() for _ in range(size)]
    answers: dict[int, tuple[bool, Any]] = {}
    try:
        port = free_port()
        for rank, interpreter in enumerate(ranks):
            place = {"rank": rank, "size": size, "address": "127.0.0.1", "port": port}
            file = inspect.getsourcefile(function)
            interpreter.pipe.send((file, function.__module__, function.__qualname__))
            interpreter.pipe.send((place, joined, args))
        _collect(ranks, answers, timeout_s, deaths)
    finally:
        whole = len(answers) == size and all(done for done, _ in answers.values())
        for rank, interpreter in enumerate(ranks):
            if whole and rank not in deaths:
                _idle.append(interpreter)
            else:
                interpreter.kill()
    wrong = [f"rank {rank}: {answer}" for rank, (done, answer) in sorted(answers.items()) if not done]
    missing = sorted(set(range(size)) - set(answers))
    if missing:
        wrong.append(f"no answer within {timeout_s} s of rank {', '.join(map(str, missing))}")
    if wrong:
        raise RankFailed("\n".join(wrong))
    return [answers[rank][1] for rank in range(size)]


def _collect(
    ranks: list[Interpreter], answers: dict[int, tuple[bool, Any]], timeout_s: float, deaths: Collection[int]
) -> None:
    """Fill `answers` until all are there or the time is over; a few seconds after the first failure at the latest."""
    until = time.monotonic() + timeout_s
    while len(answers) < len(ranks) and (left := until - time.monotonic()) > 0:
        open_ranks = {interpreter.pipe: rank for rank, interpreter in enumerate(ranks) if rank not in answers}
        for pipe in wait(list(open_ranks), left):
            assert isinstance(pipe, Connection)
            rank = open_ranks[pipe]
            answers[rank] = _answer(ranks[rank], died=rank in deaths)
            if not answers[rank][0]:
                until = min(until, time.monotonic() + 10)


def _answer(interpreter: Interpreter, *, died: bool) -> tuple[bool, Any]:
    try:
        done, answer = interpreter.pipe.recv()
    except (EOFError, ConnectionResetError):
        code = interpreter.process.wait()
        return died, None if died else f"ended with exit code {code}"
    return (False, f"was to die and gave {answer!r}") if died else (done, answer)


def _load(file: str, module: str) -> Any:
    """The module, under the name that it has in the test's process, which pickled arguments know it by."""
    found = sys.modules.get(module)
    if found is None or getattr(found, "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None and spec.loader is not None
        found = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    return found


def _serve(pipe: Connection) -> None:
    import torch

    from sfctr.parallel.world import World

    torch.set_num_threads(1)
    while True:
        try:
            file, module, name = pipe.recv()
        except EOFError:
            return
        try:
            function = _load(file, module)
            for part in name.split("."):
                function = getattr(function, part)
            place, joined, args = pipe.recv()
            if joined:
                with World.join(**place) as world:
                    result = function(world, *args)
            else:
                result = function(place, *args)
            pipe.send((True, result))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
