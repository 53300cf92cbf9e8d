"""The loop: scores, loss, gradients, step; evaluation when it is due; the best and the last model kept.

One thread. The model, the store's rows and the optimizer change in `learn` alone, one whole step at a time: whatever
ends a run (its length, early stopping, an interrupt, bad data) ends it between two steps, and the last model is kept.

  B rows, K trained labels
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sfctr.spec.batch import Batch
from sfctr.spec.errors import DataError, ModelError, SfctrError
from sfctr.spec.runfile import Train
from sfctr.telemetry import current, span

from .interrupt import Interrupts
from .log import Line, Stretch
from .loss import as_logits, row_weights, weighted_bce
from .metrics import Metrics
from .numerics import autocast, numerics, seed_step
from .optim import set_lr
from .progress import ProgressLine
from .schedule import PlateauFactor, decay_steps, schedule_factor, steps_of_run
from .scoring import Labels, Rows, Scorer, add_batch
from .stages import Stages
from .watch import Watch

LOG_EVERY = 100
"""Steps between lines on training in metrics.jsonl."""


class Part(Protocol):
    """What learning asks of a lookahead.RowRange."""

    size: int
    batch: Batch

    def features(self) -> dict[str, Tensor]: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def label_mask(self) -> Tensor: ...
    @property
    def weight(self) -> Tensor | None: ...


class Step(Part, Protocol):
    """What learning asks of a lookahead.Ready."""

    def micro_batches(self, count: int) -> Iterator[Part]: ...
    def step(
        self, optimizer: torch.optim.Optimizer | None, *, clip: float | None = None, lr_factor: float = 1.0
    ) -> float | None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of, put together by fit.

    lookahead: batches to steps whose rows are in place. scorer: for progressive validation.
    evaluate: metrics of the validation part, or None without one. save: keeps the model under a name, with its facts.
    log: takes each line of metrics.jsonl. counters: of each table, see Store.table_counters. membership: by table with
        such options, counts of keys; see Store.membership.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    source: Rows
    labels: Labels
    lookahead: Callable[[Iterable[Batch]], Iterable[Step]]
    scorer: Scorer
    evaluate: Callable[[], dict[str, Any]] | None
    save: Callable[[str, dict[str, Any]], None]
    log: Callable[[Line], None]
    progress: ProgressLine
    membership: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    counters: Callable[[], Mapping[str, Mapping[str, int]]] = field(default=dict)


class Trainer:
    """Runs the loop once. options.device and options.torch_threads are resolved."""

    def __init__(self, parts: Parts, options: Train) -> None:
        self.parts, self.options = parts, options
        self.model = parts.model
        self.step = self.epoch = self.rows = 0
        self.watch = Watch(options.watch, min_delta=options.min_delta, stop_after=options.stop_after)
        self.plateau = PlateauFactor(options.plateau)
        self.decay_steps = decay_steps(options.schedule, steps_of_run(options, parts.source.num_rows))
        self.stretch = Stretch()
        self.progressive = Metrics(parts.labels.names) if options.progressive else None
        self.columns = list(parts.labels.columns)
        self._evaluated_at = -1
        self._last_auc: float | None = None
        self._facts: dict[str, Any] = {}

    def run(self) -> None:
        """Train to the end. An interrupt or a user's error is raised on, after the last model is kept."""
        options = self.options
        with (
            numerics(
                torch_threads=options.torch_threads, flush_denormals=options.flush_denormals, device=options.device
            ),
            Interrupts() as self.interrupts,
        ):
            self._began = monotonic()
            self.stages = Stages(current(), self.parts.counters)
            try:
                self.loop()
            except (KeyboardInterrupt, SfctrError):
                if self.step:
                    self.save("last")
                raise
            finally:
                if self.progressive is not None:
                    self.progressive.close()
            self.save("last")

    def loop(self) -> None:
        self.model.train()
        for epoch in range(1, self.options.epochs + 1):
            self.epoch = epoch
            with closing(self.ready_batches()) as stream:
                for ready in stream:
                    with ready, span("step", step=self.step + 1), self.interrupts.held():
                        self.score_before_learning(ready)
                        self.learn(ready)
                    if self.options.evaluate_every and self.step % self.options.evaluate_every == 0:
                        self.evaluate()
                    if self.finished:
                        break
            if self.options.evaluate_every is None or self.finished or epoch == self.options.epochs:
                self.evaluate()
            if self.finished:
                return

    @property
    def finished(self) -> bool:
        return self.watch.should_stop or self.step == self.options.max_steps

    def ready_batches(self) -> Generator[Step, None, None]:
        before = self.step
        with closing(self.parts.source.batches(self.epoch - 1)) as batches:
            yield from self.parts.lookahead(batches)
        if self.step == before:
            raise DataError("the training data have no rows", remedy="check data.train, and the split")

    def score_before_learning(self, ready: Step) -> None:
        if self.progressive is not None:
            with self.parts.scorer.scoring():
                add_batch(self.progressive, ready.batch, self.parts.scorer.logits(ready.batch), self.parts.labels)

    def learn(self, ready: Step) -> None:
        """One step: gradients of the loss over the whole batch, then every parameter and every row of the batch."""
        options = self.options
        seed_step(options.seed, self.step, options.device)
        before = [buffer.clone() for buffer in self.model.buffers()]
        loss = self.backward(ready)
        if not math.isfinite(loss):
            self._refuse(loss, before)
        set_lr(self.parts.optimizer, options.optimizer.lr * self.lr_factor)
        ready.step(self.parts.optimizer, clip=options.clip, lr_factor=self.lr_factor)
        self.step += 1
        self.rows += ready.size
        self.parts.progress.advance(ready.size, loss, self._last_auc)
        if self.step % LOG_EVERY == 0:
            self.log_stretch()

    def backward(self, ready: Step) -> float:
        """Loss of the batch, its gradients added to parameters and rows, in as many parts as asked for."""
        weights = row_weights(self._columns(ready.label_mask), ready.weight)
        totals, loss = weights.sum(0), 0.0
        first: list[Tensor] = []
        for part in [ready] if self.options.accumulate == 1 else ready.micro_batches(self.options.accumulate):
            with autocast(self.options, self.options.device):
                features = part.features()
                with span("forward", step=self.step + 1):
                    output = self.model(features)
            logits = as_logits(output, part.size, len(self.columns), type(self.model).__name__)
            own = row_weights(self._columns(part.label_mask), part.weight)
            part_loss = weighted_bce(logits, self._columns(part.labels), own, totals)
            with span("backward", step=self.step + 1):
                part_loss.backward()  # type: ignore[no-untyped-call]
                loss += float(part_loss.detach())  # waits for an accelerator, if there is one
            first.append(logits.detach()[:, 0])
        self._note(ready, loss, torch.cat(first), weights[:, 0])
        return loss

    def evaluate(self) -> None:
        """Log where the run stands; keep the model if it is the best, and let the watched metric steer."""
        if self._evaluated_at == self.step:
            return
        self._evaluated_at = self.step
        self.log_stretch()
        line: Line = {"kind": "valid", **self._position()}
        if self.progressive is not None:
            line["progressive"] = self.progressive.result()
            self.progressive.close()
            self.progressive = Metrics(self.parts.labels.names)
        if self.parts.evaluate is not None:
            with span("evaluate"):
                found = self.parts.evaluate()
            improved = self.watch.observe(found[self.options.watch])
            line |= {**found, "best": bool(improved)}
            self._steer(improved, found)
        if len(line) > len(self._position()) + 1:
            self.parts.log({**line, **self._pace()})
            self.parts.progress.say(_summary(line))

    def _steer(self, improved: bool | None, found: dict[str, Any]) -> None:
        self._facts["evaluation"] = {**self._position(), **found}
        if improved:
            self.save("best")
        if improved is None:
            watch, why = self.options.watch, found["undefined"][self.options.watch]
            self.parts.progress.say(
                f"{watch} is undefined: {why}; this evaluation counts neither for the best model nor for stopping early"
            )
        elif self.plateau.observe(improved):
            self.parts.progress.say(f"learning rates are now at {self.plateau.factor:g} of theirs")

    def save(self, name: str) -> None:
        with span("save"):
            self.parts.save(name, {**self._position(), **self._facts})

    @property
    def lr_factor(self) -> float:
        return schedule_factor(self.options.schedule, self.step, self.decay_steps) * self.plateau.factor

    def log_stretch(self) -> None:
        if self.stretch:
            line = self.stretch.line()
            self._last_auc = line.get("auc")
            keys = self.parts.membership()
            line |= {"membership": keys} if keys else {}
            self.parts.log({"kind": "train", **self._position(), **line, **self._pace(), **self.stages.line()})
            self.stretch = Stretch()

    def _note(self, ready: Step, loss: float, logits: Tensor, weights: Tensor) -> None:
        labels = ready.batch.labels[:, self.columns[0]].astype(np.float64)
        scores, row_weight = (t.cpu().numpy().astype(np.float64) for t in (logits, weights))
        self.stretch.add(ready.size, loss, scores, labels, row_weight)

    def _columns(self, values: Tensor) -> Tensor:
        """[B] or [B, labels of the schema], as [B, K]."""
        return values.unsqueeze(1) if values.dim() == 1 else values[:, self.columns]

    def _position(self) -> Line:
        return {"step": self.step, "epoch": self.epoch, "rows": self.rows}

    def _pace(self) -> Line:
        seconds = monotonic() - self._began
        return {"lr_factor": self.lr_factor, "rows_per_s": self.rows / max(seconds, 1e-9), "seconds": seconds}

    def _refuse(self, loss: float, buffers: list[Tensor]) -> None:
        """Raise for a loss that is no number; gradients and running statistics are as before the step."""
        if self.parts.optimizer is not None:
            self.parts.optimizer.zero_grad()
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)
        raise ModelError(
            f"the loss is {loss} at step {self.step + 1} (epoch {self.epoch}), and nothing of that step was applied;"
            " lower the learning rates (train.optimizer.lr and the tables'), set train.clip, or standardize big numbers"
        )


def _summary(line: Line) -> str:
    """An evaluation for a person."""
    numbers = [f"{name} {line[name]:.5f}" for name in ("auc", "gauc", "logloss", "calibration") if line.get(name)]
    before = line.get("progressive", {})
    numbers += [f"progressive {name} {before[name]:.5f}" for name in ("auc", "logloss") if before.get(name)]
    best = "  (best)" if line.get("best") else ""
    return f"step {line['step']:,}  epoch {line['epoch']}  " + "  ".join(numbers) + best
