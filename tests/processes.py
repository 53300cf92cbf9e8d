"""Several processes for a test: `run_ranks(3, function, 7)` gives what function(world, 7) gave in each of three ranks.

The processes are forked by one that has loaded torch and the test's module, so that they start in milliseconds. The
function is found by its file and name, so it stands at the top of a module; arguments and results are pickled. What a
rank raises is raised in the test, with that rank's traceback, and every process is killed at the time-out.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

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

    deaths: ranks that die or stop on the way and give nothing; their result is None.
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


class Rank:
    """A process that runs one function; `pipe` gives (whether it is done, its result or its traceback)."""

    def __init__(self, nursery: socket.socket, function: Callable[..., Any], *call: Any) -> None:
        self.pipe, theirs = Pipe()
        socket.send_fds(nursery, [b"x"], [theirs.fileno()])
        theirs.close()
        self.pipe.send((inspect.getsourcefile(function), function.__module__, function.__qualname__))
        self.pid = self.pipe.recv()
        self.pipe.send_bytes(pickle.dumps(call))  # not send(), by which tensors would share memory

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.pipe.close()


_nursery: list[socket.socket] = []


def nursery() -> socket.socket:
    """Where ranks are asked for: a process that forks them, and ends with this one."""
    if not _nursery:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(process.kill)
        _nursery.append(ours)
    return _nursery[0]


def _run(
    size: int, function: Callable[..., Any], args: Any, timeout_s: float, deaths: Collection[int], *, joined: bool
) -> list[Any]:
    assert "<locals>" not in function.__qualname__, f"{function.__qualname__} must stand at the top of its module"
    port, ranks = free_port(), list[Rank]()
    try:
        for rank in range(size):
            place = {"rank": rank, "size": size, "address": "127.0.0.1", "port": port}
            ranks.append(Rank(nursery(), function, place, joined, args))
        answers = _collect(ranks, timeout_s, deaths)
    finally:
        for started in ranks:
            started.end()
    wrong = [f"rank {rank}: {answer}" for rank, (done, answer) in sorted(answers.items()) if not done]
    wrong += [f"rank {rank} gave {answers[rank][1]!r} and was to die" for rank in deaths if rank in answers]
    missing = sorted(set(range(size)) - set(answers) - set(deaths))
    if missing:
        wrong.append(f"no answer within {timeout_s} s of rank {', '.join(map(str, missing))}")
    if wrong:
        raise RankFailed("\n".join(wrong))
    return [None if rank in deaths else answers[rank][1] for rank in range(size)]


def _collect(ranks: list[Rank], timeout_s: float, deaths: Collection[int]) -> dict[int, tuple[bool, Any]]:
    """The answers that come in time; after a first failure the others have a few seconds."""
    answers: dict[int, tuple[bool, Any]] = {}
    waited_for = {started.pipe: rank for rank, started in enumerate(ranks)}
    until = time.monotonic() + timeout_s
    while set(waited_for.values()) - set(deaths) and (left := until - time.monotonic()) > 0:
        for pipe in wait(list(waited_for), left):
            assert isinstance(pipe, Connection)
            rank = waited_for.pop(pipe)
            try:
                answers[rank] = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                if rank not in deaths:
                    answers[rank] = False, "ended without an answer"
            if rank in answers and not answers[rank][0]:
                until = min(until, time.monotonic() + 10)
    return answers


def _load(file: str, module: str) -> Any:
    """The module, under the name that it has in the test's process, which pickled arguments know it by."""
    found = sys.modules.get(module)
    if found is None or getattr(found, "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None and spec.loader is not None
        found = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    return found


def _serve(requests: socket.socket) -> None:
    """Fork a rank for each request, until the test's process has gone."""
    import torch
    import torch._dynamo  # which every optimizer loads at its first step

    import sfctr.parallel.dense  # noqa: F401  for the ranks, which find it loaded

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no rank is waited for
    while True:
        message, handles, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        pipe = Connection(handles[0])
        file, module, name = pipe.recv()
        with suppress(Exception):  # the rank says what is wrong with it
            _load(file, module)
        if os.fork() == 0:
            requests.close()
            _be_a_rank(pipe, file, module, name)
        pipe.close()


def _be_a_rank(pipe: Connection, file: str, module: str, name: str) -> NoReturn:
    from sfctr.parallel.world import World

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pipe.send(os.getpid())
    try:
        place, joined, args = pickle.loads(pipe.recv_bytes())
        function = getattr(_load(file, module), name)
        if joined:
            with World.join(**place) as world:
                result = function(world, *args)
        else:
            result = function(place, *args)
        pipe.send_bytes(pickle.dumps((True, result)))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
    os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
