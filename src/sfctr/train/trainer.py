"""The loop: scores, loss, gradients, step; evaluation when it is due; the best and the last model kept.

One thread. The model, the store's rows and the optimizer change in `learn` alone, one whole step at a time: whatever
ends a run (its length, early stopping, an interrupt, bad data, a bug in a model) ends it between two steps, and the
last model is kept; but for what comes out of an update itself, which may be half done.
An evaluation changes nothing until it is done. So between two steps `state` is all that the loop needs to go on, and
checkpoints are taken there; `whole()` marks what must not be cut in two.

  B rows, K trained labels
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from inspect import GEN_RUNNING, getgeneratorstate
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfctr.data.order import ORDER
from sfctr.spec.errors import DataError, ModelError, SfctrError, is_agreed
from sfctr.spec.exchange import F64
from sfctr.spec.runfile import Checkpoints, Train
from sfctr.telemetry import current, notice, span

from .due import Due
from .generators import generators_kept
from .interrupt import Interrupts
from .log import Line, Stretch
from .loss import as_logits, row_weights, weighted_bce
from .merging import from_first
from .metrics import Metrics
from .numerics import autocast, numerics, seed_step
from .optim import set_lr
from .parts import Part, Parts, Step
from .said import Said
from .schedule import PlateauFactor, decay_steps, schedule_factor, steps_of_run
from .scoring import add_batch
from .stages import Stages
from .state import State
from .watch import Watch

LOG_EVERY = 100
"""Steps between lines on training in metrics.jsonl."""


class Trainer:
    """Runs the loop once. options.device and options.torch_threads are resolved.

    checkpoints: when they are due. start: what a run that stopped had come to, as `state` gave it, while the parts hold
        its rows, model and optimizer; None: a new run.
    """

    def __init__(
        self,
        parts: Parts,
        options: Train,
        checkpoints: Checkpoints = Checkpoints(),  # noqa: B008  frozen
        start: State | None = None,
    ) -> None:
        self.parts, self.options, self.checkpoints, self._start = parts, options, checkpoints, start
        self.model = parts.model
        self.step = self.epoch = self.rows = 0
        self.epochs_done = self.epoch_rows = 0
        self.num_rows = parts.source.num_rows if start is None else start.plain["loop"]["num_rows"]
        self.watch = Watch(options.watch, min_delta=options.min_delta, stop_after=options.stop_after)
        self.plateau = PlateauFactor(options.plateau)
        self.decay_steps = decay_steps(options.schedule, steps_of_run(options, self.num_rows))
        self.stretch = Stretch()
        self.progressive = Metrics(parts.labels.names) if options.progressive else None
        self.columns = list(parts.labels.columns)
        self._evaluated_at = -1
        self._best_step: int | None = None
        self._last_auc: float | None = None
        self._facts: dict[str, Any] = {}
        self._seconds, self._is_whole, self._is_updating = 0.0, True, False
        self._agreed, self._is_agreed = Said(0.0), False
        self._wire: Mapping[str, int] = {}
        self._saved: tuple[int, int] | None = None
        """Step of the newest checkpoint, and of the last evaluation in it."""
        if start is not None:
            self._restore(start)
        if parts.deltas is not None:
            parts.deltas.restore(State() if start is None else start.part("deltas"))

    def run(self) -> None:
        """Train to the end. Whatever ends it before is raised on, after what was learnt is kept."""
        options = self.options
        with (
            numerics(
                torch_threads=options.torch_threads, flush_denormals=options.flush_denormals, device=options.device
            ),
            Interrupts(deferred=self.parts.peers.size > 1) as self.interrupts,
        ):
            self._began = monotonic() - self._seconds
            self._due = Due(self.checkpoints)
            self.stages = Stages(current(), self.parts.counters)
            if self._start is not None:
                self.stages.restore(self._start.part("stages"))
                self.parts.restore_generators()
                self._due.saved(self.step)
            try:
                self.loop()
                self.last_delta()
                if self.checkpoints.at_end:
                    self.checkpoint()
                self.save("last")
                self.checkpoint_written()
            except BaseException as error:
                self.tell(error)
                if self.step and not self._is_updating and self.is_of_all(error):
                    self._keep_what_was_learnt()
                raise
            finally:
                if self.progressive is not None:
                    self.progressive.close()

    def loop(self) -> None:
        self.model.train()
        self.evaluate_if_due()
        self.delta_if_due()
        for epoch in range(self.epochs_done + 1, self.options.epochs + 1):
            self.epoch = epoch
            with closing(self.ready_batches()) as stream, self.telling():
                for ready in stream:
                    with ready, span("step", step=self.step + 1), self.whole():
                        self.score_before_learning(ready)
                        self.learn(ready)
                    self.parts.step_ended()
                    self.evaluate_if_due()
                    self.delta_if_due()
                    if self._due.at(self.step, is_late=self._agreed.is_late):
                        self.checkpoint()
                    with self.as_one():
                        self.interrupts.raise_if(self._agreed.stop)
                    if self.finished:
                        break
            if self.options.evaluate_every is None or self.finished or epoch == self.options.epochs:
                self.evaluate()
            if self.finished:
                return
            self.epochs_done, self.epoch_rows = epoch, 0

    @property
    def finished(self) -> bool:
        return self.watch.should_stop or (self.options.max_steps is not None and self.step >= self.options.max_steps)

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self._evaluated_at == self.step and (self.finished or self.epochs_done >= self.options.epochs)

    def ready_batches(self) -> Generator[Step, None, None]:
        if self.finished:
            return
        batches = self.parts.source.batches(self.epoch - 1, start_row=self.epoch_rows)
        try:
            yield from self.parts.lookahead(batches)
        finally:
            if getgeneratorstate(batches) != GEN_RUNNING:  # look-ahead has left a reader that hangs in it
                batches.close()
        if self.epoch_rows == 0:
            raise DataError("the training data have no rows", remedy="check data.train, and the split")

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is done as a whole, or else leaves a state that no run could go on from."""
        self._is_whole = False
        with self.interrupts.held():
            yield
            self._is_whole = True

    def score_before_learning(self, ready: Step) -> None:
        if self.progressive is not None:
            with self.parts.scorer.scoring():
                add_batch(self.progressive, ready.batch, self.parts.scorer.logits(ready.batch), self.parts.labels)

    def learn(self, ready: Step) -> None:
        """One step: gradients of the loss over the whole batch, then every parameter and every row of the batch."""
        options = self.options
        seed_step(options.seed, self.step, options.device)
        with self.all_or_nothing():
            share, scores = self.backward(ready)
            own = Said(share, self.interrupts.asked, self._due.is_late())
            self._agreed = own.agreed(ready.merge(self.parts.dense, own.numbers()))
            loss = self._agreed.loss
            with self.as_one():
                self._require_finite(loss)
                set_lr(self.parts.optimizer, options.optimizer.lr * self.lr_factor)
                self._is_updating = True
                ready.step(self.parts.optimizer, clip=options.clip, lr_factor=self.lr_factor, check=True)
                self._is_updating = False
        size = ready.batch.whole_size
        self.stretch.add(size, share, *scores)
        self.step += 1
        self.rows += size
        self.epoch_rows += size
        self.parts.progress.advance(size, loss, self._last_auc)
        if self.step % LOG_EVERY == 0:
            self.log_stretch()

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """What is raised inside all ranks raise, each at this point: then they can still keep what was learnt."""
        self._is_agreed = True
        yield
        self._is_agreed = False

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What is raised inside the other ranks learn before anything here is closed, which may wait for them."""
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise

    def tell(self, error: BaseException) -> None:
        if not self.is_of_all(error):
            self.parts.failed(error)

    def is_of_all(self, error: BaseException) -> bool:
        """Whether all ranks end here."""
        return self.parts.peers.size == 1 or self._is_agreed or is_agreed(error)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Gradients and running statistics are as before where a step is not applied."""
        before = [buffer.clone() for buffer in self.model.buffers()]
        try:
            yield
        except BaseException as error:
            self._is_updating &= not isinstance(error, ModelError)  # a step that is refused has changed nothing
            if not self._is_updating:
                if self.parts.optimizer is not None:
                    self.parts.optimizer.zero_grad()
                for buffer, value in zip(self.model.buffers(), before, strict=True):
                    buffer.copy_(value)
            raise

    def backward(self, ready: Step) -> tuple[float, tuple[F64, F64, F64]]:
        """This rank's share of the batch's loss, and scores, labels and weights of its rows for the first label; the
        loss's gradients are added to parameters and rows, in as many parts as asked for."""
        weights = row_weights(self._columns(ready.label_mask), ready.weight)
        totals, loss = self._totals(ready, weights), 0.0
        first: list[Tensor] = []
        for part in [ready] if self.options.accumulate == 1 else ready.micro_batches(self.options.accumulate):
            if part.size == 0 and not (self.parts.dense is not None and self.parts.dense.needs_every_rank):
                continue
            with self.over_ranks(part):
                with autocast(self.options, self.options.device):
                    features = part.features()
                    with span("forward", step=self.step + 1):
                        call = self.parts.call
                        output = self.model(features) if call is None else call(features, part.whole_size)
                logits = as_logits(output, part.size, len(self.columns), type(self.model).__name__)
                own = row_weights(self._columns(part.label_mask), part.weight)
                part_loss = weighted_bce(logits, self._columns(part.labels), own, totals)
                with span("backward", step=self.step + 1):
                    part_loss.backward()  # type: ignore[no-untyped-call]
                    loss += float(part_loss.detach())  # waits for an accelerator, if there is one
            first.append(logits.detach()[:, 0])
        return loss, self._scores(ready, torch.cat([weights[:0, 0], *first]), weights[:, 0])

    def over_ranks(self, part: Part) -> AbstractContextManager[None]:
        """The model's forward and backward for these rows are inside."""
        return nullcontext() if self.parts.dense is None else self.parts.dense.rows(part)

    def _totals(self, ready: Step, weights: Tensor) -> Tensor:
        """[K]: sum of the weights [B, K] of the whole batch."""
        whole = ready.whole
        if whole is None:
            return weights.sum(0)
        return torch.from_numpy(whole.weights[self.columns].astype(np.float32)).to(weights.device)

    def evaluate_if_due(self) -> None:
        every = self.options.evaluate_every
        if every is not None and self.step and self.step % every == 0:
            self.evaluate()

    def evaluate(self) -> None:
        """Log where the run stands; keep the model if it is the best, and let the watched metric steer."""
        if self._evaluated_at == self.step:
            return
        found = None
        if self.parts.evaluate is not None:
            with span("evaluate"), generators_kept():
                found = self.parts.evaluate()
        with self.whole():
            self._note_evaluation(found)

    def _note_evaluation(self, found: dict[str, Any] | None) -> None:
        self._evaluated_at = self.step
        self.log_stretch()
        line: Line = {"kind": "valid", **self._position()}
        if self.progressive is not None:
            self.progressive.move_to_first(self.parts.peers)
            line["progressive"] = from_first(self.parts.peers, self.progressive.result)
            self.progressive.close()
            self.progressive = Metrics(self.parts.labels.names)
        if found is not None:
            improved = self.watch.observe(found[self.options.watch])
            line |= {**found, "best": bool(improved)}
            self._steer(improved, found)
        if len(line) > len(self._position()) + 1:
            self.parts.log({**line, **self._pace()})
            self.parts.progress.say(_summary(line))

    def _steer(self, improved: bool | None, found: dict[str, Any]) -> None:
        self._facts["evaluation"] = {**self._position(), **found}
        if improved:
            self._best_step = self.step
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

    def checkpoint(self) -> None:
        """Save all that the run needs to go on from here; it is written while the run does."""
        now = self.step, self._evaluated_at
        if self.parts.checkpoint is not None and self._saved != now:
            with self.interrupts.held():
                self.parts.checkpoint.save(self.state(), self._best_step)
                self._saved = now
                self._due.saved(self.step)

    def delta_if_due(self) -> None:
        """Write what changed for whoever follows the run; before the checkpoint, which knows of it. Cut short anywhere
        it leaves nothing behind."""
        if self.parts.deltas is not None:
            self.parts.deltas.write_if_due(self.step)

    def last_delta(self) -> None:
        if self.parts.deltas is not None:
            self.parts.deltas.write(self.step)

    def checkpoint_written(self) -> None:
        if self.parts.checkpoint is not None:
            self.parts.checkpoint.wait()

    def _keep_what_was_learnt(self) -> None:
        """The checkpoint first, and on disk: whoever asked the process to end may not wait for the rest. What fails is
        said, so that what ended the run is raised."""
        with self.interrupts.held():
            try:
                if self._is_whole:
                    self.checkpoint()
                self.checkpoint_written()
            except Exception as error:
                notice(f"no checkpoint could be kept at step {self.step:,}: {_words(error)}")
            try:
                self.save("last")
            except Exception as error:
                notice(f"the last model could not be kept at step {self.step:,}: {_words(error)}")

    def state(self) -> State:
        """All that the loop needs to go on, beside rows, model, optimizer and generators. Between two steps.

        With several ranks all ask at once, and that of the first is of all of them.
        """
        own = {
            **self._position(),
            "epochs_done": self.epochs_done,
            "epoch_rows": self.epoch_rows,
            "num_rows": self.num_rows,
            "order": ORDER,
            "evaluated_at": self._evaluated_at,
            "best_step": self._best_step,
            "last_auc": self._last_auc,
            "facts": self._facts,
            "seconds": monotonic() - self._began,
        }
        parts = {
            "loop": State(own),
            "stages": self.stages.state(),
            "stretch": self.stretch.of_all(self.parts.peers).state(),
            **({} if self.parts.deltas is None else {"deltas": self.parts.deltas.state()}),
        }
        if self.progressive is not None:
            self.progressive.move_to_first(self.parts.peers)
        return State.joined(parts | {name: part.state() for name, part in self._stateful().items()})

    def _restore(self, start: State) -> None:
        own = start.plain["loop"]
        self.step, self.epoch, self.rows = own["step"], own["epoch"], own["rows"]
        self.epochs_done, self.epoch_rows = own["epochs_done"], own["epoch_rows"]
        self._evaluated_at, self._best_step, self._last_auc = own["evaluated_at"], own["best_step"], own["last_auc"]
        self._facts, self._seconds = dict(own["facts"]), own["seconds"]
        self._saved = self.step, self._evaluated_at
        self.stretch.restore(start.part("stretch"), self.parts.peers.rank)
        for name, part in self._stateful().items():
            if name != "progressive" or self.parts.peers.rank == 0:  # the first rank has what all had scored
                part.restore(start.part(name))

    def _stateful(self) -> dict[str, Watch | PlateauFactor | Metrics]:
        parts: dict[str, Watch | PlateauFactor | Metrics] = {"watch": self.watch, "plateau": self.plateau}
        return parts if self.progressive is None else {**parts, "progressive": self.progressive}

    @property
    def lr_factor(self) -> float:
        return schedule_factor(self.options.schedule, self.step, self.decay_steps) * self.plateau.factor

    def log_stretch(self) -> None:
        if self.stretch:
            line = self.stretch.line(self.parts.peers)
            self._last_auc = line.get("auc")
            keys = self.parts.membership()
            line |= {"membership": keys} if keys else {}
            line |= self._wire_line()
            held = self.parts.held()
            line |= {"held": held} if held else {}
            self.parts.log({"kind": "train", **self._position(), **line, **self._pace(), **self.stages.line()})
            self.stretch = Stretch()

    def _wire_line(self) -> Line:
        """Bytes that went between ranks since the last line."""
        now, before = self.parts.wire(), self._wire
        self._wire = now
        return {"wire": {kind: count - before.get(kind, 0) for kind, count in now.items()}} if now else {}

    def _scores(self, ready: Step, logits: Tensor, weights: Tensor) -> tuple[F64, F64, F64]:
        labels = ready.batch.labels[:, self.columns[0]].astype(np.float64)
        scores, row_weight = (t.cpu().numpy().astype(np.float64) for t in (logits, weights))
        return scores, labels, row_weight

    def _columns(self, values: Tensor) -> Tensor:
        """[B] or [B, labels of the schema], as [B, K]."""
        return values.unsqueeze(1) if values.dim() == 1 else values[:, self.columns]

    def place(self) -> dict[str, int]:
        """Steps and rows that are trained."""
        return {"step": self.step, "rows": self.rows}

    def _position(self) -> Line:
        return {"step": self.step, "epoch": self.epoch, "rows": self.rows}

    def _pace(self) -> Line:
        seconds = monotonic() - self._began
        return {"lr_factor": self.lr_factor, "rows_per_s": self.rows / max(seconds, 1e-9), "seconds": seconds}

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ModelError(
                f"the loss is {loss} at step {self.step + 1} (epoch {self.epoch}), and nothing of that step was"
                " applied; lower the learning rates (train.optimizer.lr and the tables'), set train.clip, or"
                " standardize big numbers"
            )


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, SfctrError) else f"{type(error).__name__}: {error}"


def _summary(line: Line) -> str:
    """An evaluation for a person."""
    numbers = [f"{name} {line[name]:.5f}" for name in ("auc", "gauc", "logloss", "calibration") if line.get(name)]
    before = line.get("progressive", {})
    numbers += [f"progressive {name} {before[name]:.5f}" for name in ("auc", "logloss") if before.get(name)]
    best = "  (best)" if line.get("best") else ""
    return f"step {line['step']:,}  epoch {line['epoch']}  " + "  ".join(numbers) + best
