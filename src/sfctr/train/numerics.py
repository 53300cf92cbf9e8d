"""What decides a run's bits beside data and seed: device, torch's threads, denormals, generators.

All of it is torch's process-wide state; `numerics` sets it for a run and puts back what was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile import Train
from sfctr.telemetry import notice

_MASK = (1 << 64) - 1


def resolve_device(name: str) -> str:
    """ "auto" as the device it stands for here. Raises ConfigError for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f'train.device is "{name}", which cannot be used here ({why}); "auto" takes what is there'
        ) from None
    return name


def device_of_saved(name: str) -> str:
    """The device a saved run used, or the CPU, said aloud, where it is not there."""
    try:
        return resolve_device(name)
    except ConfigError:
        notice(f"the run was made on device '{name}', which is not there; the CPU is used instead")
        return "cpu"


@contextmanager
def numerics(*, torch_threads: int | str | None, flush_denormals: bool, device: str) -> Iterator[None]:
    """Torch's threads and denormal mode as a settled run has them; generators are the caller's again at the end."""
    threads, flushing = torch.get_num_threads(), _flushes_denormals()
    devices = [torch.cuda.current_device()] if device.startswith("cuda") else []
    try:
        if isinstance(torch_threads, int):
            torch.set_num_threads(torch_threads)
        torch.set_flush_denormal(flush_denormals)
        with torch.random.fork_rng(devices):
            yield
    finally:
        torch.set_flush_denormal(flushing)
        torch.set_num_threads(threads)


def _flushes_denormals() -> bool:
    """Torch has a setter alone; half of the smallest normal number tells."""
    return bool(torch.tensor(torch.finfo(torch.float64).tiny, dtype=torch.float64) / 2 == 0)


def seed_step(seed: int, step: int, device: str) -> None:
    """Seed torch's generators for one step, so that dropout depends on (seed, step) and not on what ran before."""
    word = ((seed & _MASK) * 0x9E3779B97F4A7C15 + step + 1) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    word ^= word >> 31
    torch.default_generator.manual_seed(word >> 1)
    if device.startswith("cuda"):
        torch.cuda.manual_seed(word >> 1)


def autocast(options: Train, device: str) -> torch.autocast:
    """The context in which the model runs."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=options.autocast == "bf16")
