"""The loop over a plain dense model: what it does at each step, when it evaluates, keeps, lowers and stops."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sfctr.spec.batch import Batch
from sfctr.spec.errors import CheckpointError, ConfigError, DataError, ModelError, Terminated
from sfctr.spec.optim import SGD, Plateau, Schedule
from sfctr.spec.runfile import Checkpoints, Train
from sfctr.telemetry import Recorder
from sfctr.train.interrupt import Interrupts
from sfctr.train.numerics import autocast, numerics, seed_step
from sfctr.train.optim import make_dense_optimizer
from sfctr.train.parts import Parts
from sfctr.train.progress import ProgressLine
from sfctr.train.scoring import Labels, Scorer
from sfctr.train.trainer import LOG_EVERY, Trainer

ONE = Labels(("y",), (0,))


def batch_of(x, labels, mask=None, weight=None) -> Batch:
    labels = np.asarray(labels, np.float32).reshape(len(x), -1)
    known = np.ones(labels.shape, bool) if mask is None else np.asarray(mask, bool).reshape(labels.shape)
    return Batch(
        size=len(x),
        dense={"x": np.asarray(x, np.float32).reshape(len(x), -1)},
        labels=np.where(known, labels, 0).astype(np.float32),
        label_mask=known,
        weight=None if weight is None else np.asarray(weight, np.float32),
        rows=np.arange(len(x)),
    )


class Rows:
    """A range of a batch's rows, as a Ready gives it; the dense columns are the only features."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.size = batch, batch.size
        self.labels, self.label_mask = torch.from_numpy(batch.labels), torch.from_numpy(batch.label_mask)
        self.weight = None if batch.weight is None else torch.from_numpy(batch.weight)

    def features(self):
        return {name: torch.from_numpy(values) for name, values in self.batch.dense.items()}


class Ready(Rows):
    def __init__(self, batch: Batch, steps: list[float]) -> None:
        super().__init__(batch)
        self.steps, self.open, self.whole = steps, True, None

    def merge(self, dense, extras):
        return extras[None]

    def micro_batches(self, count):
        for part in np.array_split(np.arange(self.size), count):
            b, rows = self.batch, slice(part[0], part[-1] + 1)
            weight = None if b.weight is None else b.weight[rows]
            yield Rows(batch_of(b.dense["x"][rows], b.labels[rows], b.label_mask[rows], weight))

    def step(self, optimizer, *, clip=None, lr_factor=1.0, check=False):
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
        optimizer.step()
        optimizer.zero_grad()
        self.steps.append(lr_factor)
        self.open = False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


class Source:
    def __init__(self, batches, num_rows):
        self.all, self.num_rows, self.closed = batches, num_rows, 0

    def batches(self, epoch=0, *, start_row=0):
        try:
            yield from self.all
        finally:
            self.closed += 1


class View:
    unseen = {}  # noqa: RUF012

    def features(self, batch):
        return Rows(batch).features()

    def reset(self):
        pass


class Tower(nn.Module):
    def __init__(self, width=2, labels=1, dropout=0.0):
        super().__init__()
        self.layer = nn.Linear(width, labels)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, features):
        return self.layer(self.dropout(features["x"])).squeeze(1)


class Setup:
    """A trainer with everything it says written down."""

    def __init__(self, batches, model=None, evaluate=None, labels=ONE, num_rows=None, **options):
        self.steps, self.saved, self.lines, self.evaluations = [], [], [], []
        self.model = model or Tower()
        self.options = Train(**{"optimizer": SGD(lr=1.0), "device": "cpu", "torch_threads": 1, **options})
        self.source = Source(batches, num_rows)
        self.script = None if evaluate is None else iter(evaluate)
        parts = Parts(
            model=self.model,
            optimizer=make_dense_optimizer(self.options.optimizer, self.model.parameters()),
            source=self.source,
            labels=labels,
            lookahead=lambda batches: (Ready(batch, self.steps) for batch in batches),
            scorer=Scorer(self.model, View(), len(labels.names), lambda: autocast(self.options, "cpu")),
            evaluate=None if evaluate is None else self.evaluate,
            save=lambda name, facts: self.saved.append((name, facts["step"])),
            log=self.lines.append,
            progress=ProgressLine(num_rows, quiet=True),
        )
        self.trainer = Trainer(parts, self.options)

    def evaluate(self):
        value = next(self.script)
        if isinstance(value, BaseException):
            raise value
        self.evaluations.append(self.trainer.step)
        return {"auc": value, "undefined": {"auc": "all labels are 0"}} if value is None else {"auc": value}

    def run(self):
        self.trainer.run()
        return self

    @property
    def weights(self):
        return [p.tolist() for p in self.model.parameters()]


def four(seed=0, count=4, rows=8):
    rng = np.random.default_rng(seed)
    return [batch_of(rng.normal(size=(rows, 2)), rng.integers(0, 2, rows)) for _ in range(count)]


def test_one_step_by_hand():
    # logits 0, so the gradient of each row is (1/2 - y) x / 2; lr 1
    setup = Setup([batch_of([[2.0, 0.0], [0.0, 4.0]], [1, 0])]).run()
    assert setup.weights == [[[0.5, -1.0]], [0.0]]
    assert setup.saved == [("last", 1)]


def test_masked_rows_teach_nothing_and_a_fully_masked_batch_is_still_a_step():
    known = batch_of([[2.0, 0.0]], [1])
    mixed = batch_of([[2.0, 0.0], [9.0, 9.0]], [1, 0], mask=[True, False])
    nothing = batch_of([[9.0, 9.0]], [1], mask=[False])
    assert Setup([known]).run().weights == Setup([mixed]).run().weights
    setup = Setup([nothing]).run()
    assert setup.weights == [[[0.0, 0.0]], [0.0]]
    assert setup.trainer.step == 1


def test_a_weight_of_two_is_the_row_twice():
    x, y = [[1.0, 2.0], [3.0, -1.0]], [1, 0]
    weighted = Setup([batch_of(x, y, weight=[2.0, 1.0])] * 3).run()
    twice = Setup([batch_of([x[0], *x], [1, *y])] * 3).run()
    assert np.allclose(weighted.weights[0], twice.weights[0], atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_step_in_four_parts_is_the_step_as_one(clip):
    batches = [
        batch_of(b.dense["x"], b.labels, mask=np.arange(8) % 5 != 3, weight=np.arange(8.0)) for b in four(rows=8)
    ]
    one = Setup(batches, clip=clip).run()
    parts = Setup(batches, clip=clip, accumulate=4).run()
    assert np.allclose(one.weights[0], parts.weights[0], atol=1e-6)
    assert one.lines[-1]["loss"] == pytest.approx(parts.lines[-1]["loss"], rel=1e-6)


def test_only_the_labels_asked_for_are_trained():
    batch = batch_of([[1.0, 0.0]], [[1, 0]])
    setup = Setup([batch], labels=Labels(("second",), (1,))).run()
    assert setup.weights == [[[-0.5, 0.0]], [-0.5]]


def test_every_rate_follows_the_schedule():
    schedule = Schedule(warmup_steps=2, decay="linear", decay_steps=2)
    setup = Setup(four(count=5), schedule=schedule).run()
    assert setup.steps == [0.5, 1.0, 1.0, 0.5, 0.0]
    dense = [g["lr"] for g in setup.trainer.parts.optimizer.param_groups]
    assert dense == [0.0]


def test_a_decay_to_the_end_takes_the_runs_length_from_rows_epochs_and_max_steps():
    decay = Schedule(decay="linear")
    assert Setup(four(), num_rows=30, batch_size=8, epochs=2, schedule=decay).trainer.decay_steps == 8
    assert Setup(four(), num_rows=30, batch_size=8, epochs=2, max_steps=5, schedule=decay).trainer.decay_steps == 5
    assert Setup(four(), max_steps=5, schedule=decay).trainer.decay_steps == 5
    with pytest.raises(ConfigError, match="not known beforehand"):
        Setup(four(), schedule=decay)


def test_it_evaluates_after_each_epoch_and_keeps_the_best_and_the_last():
    setup = Setup(four(), evaluate=[0.6, 0.8, 0.7], epochs=3).run()
    assert setup.evaluations == [4, 8, 12]
    assert setup.saved == [("best", 4), ("best", 8), ("last", 12)]
    assert [line["best"] for line in setup.lines if line["kind"] == "valid"] == [True, True, False]


def test_it_evaluates_every_so_many_steps_and_once_at_the_end():
    setup = Setup(four(), evaluate=[0.5] * 9, epochs=2, evaluate_every=3).run()
    assert setup.evaluations == [3, 6, 8]
    setup = Setup(four(), evaluate=[0.5] * 9, epochs=2, evaluate_every=3, max_steps=6).run()
    assert setup.evaluations == [3, 6]
    assert setup.trainer.step == 6


def test_it_stops_early_after_so_many_evaluations_without_improvement():
    setup = Setup(four(), evaluate=[0.6, 0.7, 0.69, 0.7, 0.9], epochs=9, stop_after=2).run()
    assert setup.evaluations == [4, 8, 12, 16]
    assert setup.saved == [("best", 4), ("best", 8), ("last", 16)]


def test_a_plateau_lowers_every_rate_from_the_next_step_on():
    setup = Setup(four(count=1), evaluate=[0.6, 0.6, 0.7, 0.7, 0.7], epochs=5, plateau=Plateau(factor=0.5)).run()
    assert setup.steps == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_an_undefined_metric_neither_improves_nor_counts():
    setup = Setup(four(), evaluate=[0.6, None, None, 0.5], epochs=4, stop_after=2, plateau=Plateau(factor=0.5)).run()
    assert setup.evaluations == [4, 8, 12, 16]
    assert setup.saved == [("best", 4), ("last", 16)]
    assert setup.steps == [1.0] * 16


def test_a_loss_that_is_no_number_is_named_and_its_step_not_applied():
    bad = batch_of([[np.inf, 1.0]], [1])
    setup = Setup([*four(count=2), bad])
    words = (
        r"the loss is (nan|inf) at step 3 \(epoch 1\), and nothing of that step was applied; lower the learning rates"
    )
    with pytest.raises(ModelError, match=words):
        setup.run()
    assert setup.weights == Setup(four(count=2)).run().weights
    assert setup.saved == [("last", 2)]
    assert all(p.grad is None for p in setup.model.parameters())


def test_a_step_that_is_not_applied_leaves_running_statistics_alone():
    class Normed(Tower):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, features):
            return super().forward({"x": self.norm(features["x"])})

    setup, good = Setup([*four(count=2), batch_of([[np.inf, 1.0], [0, 0]], [1, 0])], model=Normed()), Normed()
    with pytest.raises(ModelError, match="at step 3"):
        setup.run()
    Setup(four(count=2), model=good).run()
    found, expected = (dict(model.named_buffers()) for model in (setup.model, good))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_training_data_without_rows_are_refused():
    with pytest.raises(DataError, match="the training data have no rows"):
        Setup([]).run()


def test_progressive_validation_scores_each_batch_before_it_is_learnt():
    batches = four(count=6)
    setup = Setup(batches, progressive=True, evaluate_every=3).run()
    lines = [line for line in setup.lines if line["kind"] == "valid"]
    assert [line["progressive"]["rows"] for line in lines] == [24, 24]
    model = Setup(batches[:3]).run().model
    with torch.no_grad():
        logits = model({"x": torch.from_numpy(batches[3].dense["x"])})
        first = binary_cross_entropy_with_logits(logits, torch.from_numpy(batches[3].labels[:, 0])).item()
    whole = Setup(batches[:4], progressive=True, evaluate_every=3).run()
    line = [line for line in whole.lines if line["kind"] == "valid"][-1]
    assert line["progressive"]["logloss"] == pytest.approx(first, rel=1e-5)
    assert setup.weights == Setup(batches).run().weights


def test_lines_on_training_come_every_hundred_steps_and_before_an_evaluation():
    setup = Setup(four(count=LOG_EVERY + 5), evaluate=[0.5]).run()
    kinds = [(line["kind"], line["step"]) for line in setup.lines]
    assert kinds == [("train", LOG_EVERY), ("train", LOG_EVERY + 5), ("valid", LOG_EVERY + 5)]
    position, pace = {"kind", "step", "epoch", "rows"}, {"lr_factor", "rows_per_s", "seconds"}
    assert set(setup.lines[0]) == position | pace | {"loss", "auc", "stage_s", "moved"}
    assert set(setup.lines[0]["stage_s"]) == {"forward", "backward", "step"}  # the other stages are those of a store
    assert setup.lines[0]["rows"] == 8 * LOG_EVERY


def test_two_runs_with_one_seed_have_the_same_bits_whatever_ran_before():
    first = Setup(four(), model=Tower(dropout=0.5), seed=3).run()
    torch.rand(17)
    second = Setup(four(), model=Tower(dropout=0.5), seed=3).run()
    assert first.weights == second.weights
    assert first.weights != Setup(four(), model=Tower(dropout=0.5), seed=4).run().weights


def test_a_run_leaves_torchs_generator_threads_and_denormals_as_they_were():
    threads = torch.get_num_threads()
    setup = Setup(four(), torch_threads=2 if threads == 1 else 1)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    torch.set_flush_denormal(False)
    setup.run()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.tensor(1e-310, dtype=torch.float64) / 2 > 0
    with numerics(torch_threads=None, flush_denormals=True, device="cpu"):
        assert torch.tensor(1e-310, dtype=torch.float64) / 2 == 0


def test_the_seed_of_a_step_differs_from_every_neighbour():
    drawn = set()
    for seed in (0, 1, -1, 2**64 - 2):
        for step in range(3):
            seed_step(seed, step, "cpu")
            drawn.add(torch.rand(1).item())
    assert len(drawn) == 12


def test_bf16_autocast_changes_the_bits_but_not_the_learning():
    plain, autocasted = Setup(four()).run(), Setup(four(), autocast="bf16").run()
    assert plain.weights != autocasted.weights
    assert np.allclose(plain.weights[0], autocasted.weights[0], atol=0.05)


class Interrupting(Tower):
    """Sends an interrupt while it scores for the n-th time."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def forward(self, features):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(features)


def test_an_interrupt_waits_for_the_step_and_keeps_the_last_model():
    before = signal.getsignal(signal.SIGINT)
    setup = Setup(four(), model=Interrupting(at=2))
    with pytest.raises(KeyboardInterrupt):
        setup.run()
    assert setup.saved == [("last", 2)]
    assert setup.weights == Setup(four(count=2)).run().weights
    assert setup.source.closed == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_outside_a_step_is_raised_at_once_and_a_second_one_always():
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        reached = []

        def interrupted_twice():
            with interrupts.held():
                os.kill(os.getpid(), signal.SIGINT)
                reached.append("after the first")
                os.kill(os.getpid(), signal.SIGINT)
                reached.append("after the second")

        with pytest.raises(KeyboardInterrupt):
            interrupted_twice()
        assert reached == ["after the first"]


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["interrupt", "sigterm"]
)
def test_what_comes_in_while_held_is_raised_at_the_end_of_the_outermost_block(number, kind):
    reached = []
    with Interrupts() as interrupts, pytest.raises(kind), interrupts.held():
        with interrupts.held():
            os.kill(os.getpid(), number)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"]


def test_a_second_sigterm_waits_too_and_leaves_the_process_with_143():
    with Interrupts() as interrupts, pytest.raises(Terminated) as terminated, interrupts.held():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert isinstance(terminated.value, SystemExit) and terminated.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signals_that_are_ignored_stay_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_in_another_thread_works_without_signals():
    setup = Setup(four())
    thread = threading.Thread(target=setup.run)
    thread.start()
    thread.join()
    assert setup.saved == [("last", 4)]


def test_an_error_in_the_data_keeps_what_was_learnt_until_then():
    def batches():
        yield from four(count=2)
        raise DataError("a label is 2", row=17)

    setup = Setup([])
    setup.source.batches = lambda epoch=0, start_row=0: batches()
    with pytest.raises(DataError, match="row 17"):
        setup.run()
    assert setup.saved == [("last", 2)]


def test_an_evaluation_that_fails_keeps_the_last_model_too():
    setup = Setup(four(), evaluate=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        setup.run()
    assert setup.saved == [("last", 4)]


def test_a_model_that_gives_no_logit_per_row_is_named():
    class Wide(Tower):
        def forward(self, features):
            return features["x"]

    with pytest.raises(ModelError, match=r"model 'Wide' gave float32 of shape \(8, 2\) for 8 rows"):
        Setup(four(), model=Wide()).run()


class Saver:
    """Keeps checkpoints in memory; fails where `errors` says so."""

    def __init__(self, **errors):
        self.states, self.waited, self.errors = {}, [], errors

    def save(self, state, best_step):
        if "save" in self.errors:
            raise self.errors["save"]
        self.states[state.plain["loop"]["step"]] = (state, best_step)

    def wait(self):
        self.waited.append(max(self.states, default=None))
        if "wait" in self.errors:
            raise self.errors.pop("wait")


def saving(setup, saver, checkpoints, start=None):
    parts = replace(setup.trainer.parts, checkpoint=saver)
    setup.trainer = Trainer(parts, setup.options, checkpoints, start)
    return setup


def test_checkpoints_are_taken_between_steps_and_at_the_end():
    saver = Saver()
    saving(Setup(four(count=7), evaluate=[0.5, 0.7, 0.6], evaluate_every=3), saver, Checkpoints(every_steps=3)).run()
    assert {step: best for step, (_, best) in saver.states.items()} == {3: 3, 6: 6, 7: 6}
    assert saver.states[6][0].plain["watch"] == {"best": 0.7, "without_improvement": 0}
    assert saver.waited == [7]
    saver = Saver()
    saving(Setup(four(count=7)), saver, Checkpoints(every_minutes=0, at_end=False)).run()
    assert saver.states == {}


def test_one_is_taken_anew_where_an_evaluation_has_followed_it():
    saver = Saver()
    saving(Setup(four(), evaluate=[0.5]), saver, Checkpoints(every_steps=4)).run()
    assert saver.states[4][0].plain["loop"]["evaluated_at"] == 4


def test_the_loop_goes_on_in_its_epoch_and_ends_there():
    saver, starts = Saver(), []
    setup = saving(Setup(four(), epochs=2, num_rows=32), saver, Checkpoints(every_steps=5))
    setup.run()
    again = Setup(four(count=4), epochs=2, num_rows=99)

    def batches(epoch, start_row):
        starts.append((epoch, start_row))
        yield from four()[start_row // 8 :]

    again.source.batches = batches
    again.model.load_state_dict(Setup(four() + four()[:1]).run().model.state_dict())
    saving(again, saver, Checkpoints(), saver.states[5][0]).run()
    assert starts == [(1, 8)]
    assert again.weights == setup.weights
    assert (again.trainer.step, again.trainer.rows, again.trainer.num_rows) == (8, 64, 32)
    assert again.trainer.has_ended == setup.trainer.has_ended


@pytest.mark.parametrize("where", ["save", "wait"])
def test_what_stopped_the_run_is_raised_though_its_checkpoint_fails(where, caplog):
    saver = Saver(**{where: CheckpointError("the disk is full")})
    setup = saving(Setup(four(), model=Interrupting(at=2)), saver, Checkpoints())
    with Recorder(), pytest.raises(KeyboardInterrupt):
        setup.run()
    assert "no checkpoint could be kept at step 2: the disk is full" in caplog.text
    assert setup.saved == [("last", 2)]


def test_a_checkpoint_that_fails_ends_the_run_and_keeps_the_last_model():
    setup = saving(Setup(four()), Saver(save=CheckpointError("the disk is full")), Checkpoints(every_steps=2))
    with pytest.raises(CheckpointError, match="the disk is full"):
        setup.run()
    assert setup.saved == [("last", 2)]


def test_a_step_that_was_cut_in_two_leaves_no_checkpoint():
    class Twice(Interrupting):
        def forward(self, features):
            output = super().forward(features)
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return output

    saver = Saver()
    with pytest.raises(KeyboardInterrupt):
        saving(Setup(four(), model=Twice(at=3)), saver, Checkpoints(every_minutes=0)).run()
    assert saver.states == {}
