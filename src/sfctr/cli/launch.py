"""`sfctr launch`: `sfctr train` in many processes, on one machine or several, started anew when one of them fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile import RunFile

from .run_file import RUN_FILE, SET, read_run_file
from .world import LAUNCHER, MISTAKE


def launch(
    context: typer.Context,
    run_file: Annotated[Path, RUN_FILE],
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes on this machine.")],
    set_: Annotated[list[str], SET] = [],  # noqa: B006  typer copies it
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines that train together.")] = 1,
    node_rank: Annotated[
        int | None,
        typer.Option("--node-rank", min=0, help="Number of this machine; 0 is the one whose address --rendezvous is."),
    ] = None,
    rendezvous: Annotated[
        str | None,
        typer.Option("--rendezvous", metavar="HOST:PORT", help="Where machines meet: an address of one of them."),
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, help="How often all processes start anew after one has failed.")
    ] = 3,
) -> None:
    """Train a run file in several processes, with the results of one.

    Further options are those of 'sfctr train'. With several machines, the same command is given on each of them.
    """
    run = read_run_file(run_file, set_)  # a mistake is said once, and before anything starts
    _check_machines(nodes, node_rank, rendezvous)
    _check_run(run, run_file, context.args, processes, nodes * processes)
    _prepare(os.environ, processes)
    from sfctr.parallel.launcher import launch as start

    options = [word for value in set_ for word in ("--set", value)]
    program = ["-m", "sfctr", "train", str(run_file), *options, *context.args]
    try:
        code = start(
            program, processes=processes, restarts=restarts, nodes=nodes, node_rank=node_rank, rendezvous=rendezvous
        )
    finally:
        Path(os.environ[MISTAKE]).unlink(missing_ok=True)
    raise typer.Exit(code)


def _check_run(run: RunFile, run_file: Path, more: Sequence[str], processes: int, size: int) -> None:
    """What each process would refuse. processes: of this machine; size: of all."""
    from sfctr.data import lanes_of

    from .main import app
    from .train import check_place

    lanes_of(0, size, run.parallel.shares)
    if size % run.parallel.tensor:
        raise ConfigError(
            f"parallel.tensor is {run.parallel.tensor} and {size} processes train, which is no multiple of it"
        )
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    with command.commands["train"].make_context("sfctr train", [str(run_file), *more]) as given:
        options = given.params
    if size == processes and not (options["resume"] or options["overwrite"]):  # else a machine may be coming back
        check_place(options["run"] or Path("runs") / run_file.stem)


def _check_machines(nodes: int, node_rank: int | None, rendezvous: str | None) -> None:
    if nodes > 1 and rendezvous is None:
        raise ConfigError(
            f"--nodes is {nodes} and machines need a place to meet; add --rendezvous HOST:PORT, an address of one of"
            " them"
        )
    if rendezvous is not None:
        port = rendezvous.rpartition(":")[2]
        if not (port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ConfigError(f"--rendezvous is '{rendezvous}' and must be HOST:PORT, such as 10.0.0.1:29400")
    if node_rank is not None and node_rank >= nodes:
        raise ConfigError(f"--node-rank is {node_rank} and must be below --nodes, {nodes}")


def _prepare(environment: MutableMapping[str, str], processes: int) -> None:
    """What the launcher and the processes read when they begin; what the user has set stays."""
    defaults = {
        # Each attempt has a store of its own: in a shared one, keys of the last attempt make the next one hang.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Read when torch is loaded. Threads that spin while they wait take the cores from other processes.
        "OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // processes, 1)),
        "OMP_WAIT_POLICY": "PASSIVE",
        # The logs of the launcher and of torch's own connections; what ends a process that process says.
        "LOGLEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    for name, value in defaults.items():
        environment.setdefault(name, value)
    environment[LAUNCHER] = str(os.getpid())
    environment[MISTAKE] = str(Path(tempfile.gettempdir()) / f"sfctr-mistake-{uuid4().hex}")
