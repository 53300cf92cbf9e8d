"""Checkpoints as files, whole copies written while training waits: what stands in until sfctr.checkpoint keeps them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from sfctr.checkpoint import SavedModel, open_model, save_model
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile import Checkpoints, RunFile
from sfctr.store import Store
from sfctr.telemetry import notice

from .saving import Keeping, Strings, TrainingState


class _Tensors:
    """Named tensors where a module is asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, Tensor]:
        return self._tensors


class _Saver:
    def __init__(self, directory: Path, options: Checkpoints) -> None:
        self._directory, self._keep = directory, options.keep

    def save(self, state: TrainingState) -> None:
        tensors = {f"dense.{name}": value for name, value in state.model.state_dict().items()}
        optimizer: dict[str, Any] = {"state": {}} if state.optimizer is None else state.optimizer.state_dict()
        for number, fields in optimizer["state"].items():
            tensors |= {f"optimizer.{number}.{name}": v for name, v in fields.items() if isinstance(v, Tensor)}
        tensors |= {f"trainer.{name}": value for name, value in state.tensors.items()}
        tensors["random"] = torch.random.get_rng_state()
        _, key, pos, has_gauss, cached = cast(Any, np.random.get_state())
        facts = {
            **state.facts,
            "trainer": state.trainer,
            "python": random.getstate(),
            "numpy": ["MT19937", key.tolist(), pos, has_gauss, cached],
        }
        path = self._directory / f"step-{state.store.steps:012}"
        model = cast(nn.Module, _Tensors(tensors))
        save_model(path, run=state.run, store=state.store, model=model, facts=facts, strings=state.strings())
        for old in sorted(self._directory.glob("step-" + "?" * 12))[: -self._keep]:
            shutil.rmtree(old)

    def wait(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class _Saved:
    saved: SavedModel

    @property
    def step(self) -> int:
        return self.saved.steps

    @property
    def run(self) -> RunFile:
        return self.saved.run

    @property
    def trainer(self) -> Mapping[str, Any]:
        trainer: Mapping[str, Any] = self.saved.facts["trainer"]
        return trainer

    def trainer_tensors(self) -> dict[str, Tensor]:
        return self._under("trainer")

    def load_store(self, store: Store) -> None:
        self.saved.load_rows(store)

    def load_model(self, model: nn.Module) -> None:
        model.load_state_dict(self._under("dense"))

    def load_optimizer(self, optimizer: torch.optim.Optimizer | None, model: nn.Module, store: Store) -> None:
        if optimizer is not None:
            whole = optimizer.state_dict()
            for name, value in self._under("optimizer").items():
                number, field = name.split(".")
                whole["state"].setdefault(int(number), {})[field] = value
            optimizer.load_state_dict(whole)

    def restore_random_states(self) -> None:
        version, words, gauss = self.saved.facts["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(tuple(self.saved.facts["numpy"]))
        torch.random.set_rng_state(self.saved._dense()["model.random"])

    def strings(self) -> Strings:
        return self.saved.strings()

    def _under(self, name: str) -> dict[str, Tensor]:
        front = f"model.{name}."
        return {key[len(front) :]: value for key, value in self.saved._dense().items() if key.startswith(front)}


def _newest(directory: Path) -> _Saved | None:
    """The newest sound one. Raises CheckpointError where there are some, and none is sound."""
    why: list[str] = []
    for path in sorted(directory.glob("step-" + "?" * 12), reverse=True):
        try:
            found = _Saved(open_model(path))
        except CheckpointError as error:
            why.append(str(error))
        else:
            for reason in why:
                notice(f"not used: {reason}")
            return found
    if why:
        raise CheckpointError(f"{directory}: no checkpoint is sound: {'; '.join(why)}")
    return None


CHECKPOINT_FILES = Keeping(newest=_newest, saver=lambda directory, options, store, start: _Saver(directory, options))
