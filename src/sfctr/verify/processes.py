"""Trains the first steps of a run on several processes of this machine, and brings back what each came to."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sfctr.parallel.world import World
from sfctr.spec.errors import PeerError, SfctrError
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file

from .parts import Part
from .workbench import Makers, Workbench

Steps = Sequence[Part]
"""What one rank came to after each step."""


def train_in_processes(run: RunFile, steps: int, size: int, start: Path | None = None) -> list[Steps]:
    """Of each rank, in their order. Raises what the first rank that failed raises, as PeerError.

    start: a directory in which some of these steps were trained and kept: go on there, and give nothing.
    """
    context, port = get_context("spawn"), _free_port()
    processes, answers = [], {}
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, rank, size, port, render_run_file(run), steps, start)
            process = context.Process(target=_be_a_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append((process, ours))
        answers = _answers([pipe for _, pipe in processes])
    finally:
        for process, _ in processes:
            process.terminate()
            process.join()
    wrong = [f"rank {rank}: {words}" for rank, (parts, words) in sorted(answers.items()) if parts is None]
    if wrong:
        own = [words for words in wrong if "PeerError" not in words]
        raise PeerError((own or wrong)[0])
    return [answers[rank][0] or () for rank in range(size)]


def rank_steps(world: World, run: RunFile, steps: int, start: Path | None = None) -> list[Part]:
    """What this rank comes to, after each step; nothing where it goes on from `start`."""
    found: list[Part] = []
    with Workbench(run, Makers(), world=world) as bench:
        if start is None:
            bench.train_part(bench.run, steps, found.append)
        else:
            bench.train_kept(bench.run, steps, start, goes_on=True)
    return found


def _answers(pipes: Sequence[Connection]) -> dict[int, tuple[Steps | None, str]]:
    """Of each rank its steps, or None and why there are none."""
    answers: dict[int, tuple[Steps | None, str]] = {}
    waiting: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
    while waiting:
        for pipe in wait(list(waiting)):
            rank = waiting.pop(pipe)
            assert isinstance(pipe, Connection)
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                answers[rank] = None, "ended without an answer"
    return answers


def _be_a_rank(answer: Connection, rank: int, size: int, port: int, text: str, steps: int, start: Path | None) -> None:
    try:
        with World.join(rank=rank, size=size, address="127.0.0.1", port=port, local_rank=rank) as world:
            answer.send((rank_steps(world, decode_run_file(text, "run.toml"), steps, start), ""))
    except SfctrError as error:
        answer.send((None, f"{type(error).__name__}: {error}"))
    except BaseException:
        answer.send((None, traceback.format_exc()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
