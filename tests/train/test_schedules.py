"""Learning-rate factors, plateaus and early stopping, worked out by hand; dense optimizers by their first steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfctr.spec.errors import ConfigError
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Plateau, RowWiseAdagrad, Schedule
from sfctr.train.optim import make_dense_optimizer, set_lr
from sfctr.train.schedule import PlateauFactor, decay_steps, schedule_factor
from sfctr.train.watch import Watch


@pytest.mark.parametrize(
    ("schedule", "total", "factors"),
    [
        (Schedule(), None, {0: 1.0, 1000: 1.0}),
        (Schedule(warmup_steps=4), None, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 99: 1.0}),
        (Schedule(decay="linear", decay_steps=4, final=0.2), None, {0: 1.0, 1: 0.8, 2: 0.6, 4: 0.2, 9: 0.2}),
        (
            Schedule(warmup_steps=2, decay="linear", decay_steps=2),
            None,
            {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.5, 4: 0.0, 5: 0.0},
        ),
        (Schedule(decay="linear"), 10, {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0}),
        (Schedule(warmup_steps=2, decay="cosine", final=0.5), 6, {2: 1.0, 4: 0.75, 6: 0.5}),
        (Schedule(decay="cosine", decay_steps=3), None, {1: 0.75, 2: 0.25, 3: 0.0}),
        (Schedule(warmup_steps=4, decay="inverse_sqrt"), None, {3: 1.0, 4: 1.0, 16: 0.5, 64: 0.25}),
        (Schedule(decay="inverse_sqrt", final=0.5), None, {0: 1.0, 3: 0.5, 99: 0.5}),
        (Schedule(decay="inverse_sqrt", decay_steps=8), None, {8: 1 / 3, 99: 1 / 3}),
    ],
)
def test_factors_by_hand(schedule, total, factors):
    length = decay_steps(schedule, total)
    for step, factor in factors.items():
        assert schedule_factor(schedule, step, length) == pytest.approx(factor, abs=1e-12), step


def test_a_decay_to_the_end_of_a_run_of_unknown_length_is_refused():
    words = 'train.schedule.decay is "cosine" and how many steps .* set train.schedule.decay_steps or train.max_steps'
    with pytest.raises(ConfigError, match=words):
        decay_steps(Schedule(decay="cosine"), None)


def test_a_plateau_lowers_after_its_patience_and_not_below_its_floor():
    plateau = PlateauFactor(Plateau(factor=0.1, patience=1, min_factor=0.05))
    seen = []
    for improved in (True, False, False, True, False, False, False, False):
        lowered = plateau.observe(improved)
        seen.append((lowered, round(plateau.factor, 12)))
    assert [factor for _, factor in seen] == [1, 1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05]
    assert [lowered for lowered, _ in seen] == [False, False, True, False, False, True, False, False]


def test_without_a_plateau_the_factor_stays_one():
    plateau = PlateauFactor(None)
    assert [plateau.observe(False) for _ in range(5)] == [False] * 5
    assert plateau.factor == 1.0


def test_a_watch_stops_after_so_many_evaluations_without_improvement_in_a_row():
    watch = Watch("auc", min_delta=0.01, stop_after=2)
    seen = [(watch.observe(value), watch.should_stop) for value in (0.7, 0.705, 0.72, 0.72, None, 0.725)]
    assert seen == [(True, False), (False, False), (True, False), (False, False), (None, False), (False, True)]
    assert watch.best == 0.72


@pytest.mark.parametrize(("metric", "better"), [("auc", 0.9), ("gauc", 0.9), ("logloss", 0.1), ("ne", 0.1)])
def test_each_metric_improves_in_its_own_direction(metric, better):
    watch = Watch(metric)
    assert [watch.observe(0.5), watch.observe(better), watch.observe(0.5)] == [True, True, False]


TORCH = {
    SGD(lr=0.1): lambda p: torch.optim.SGD(p, 0.1),
    SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01): lambda p: torch.optim.SGD(
        p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    Adagrad(lr=0.1, initial_accumulator=0.5, weight_decay=0.01): lambda p: torch.optim.Adagrad(
        p, 0.1, initial_accumulator_value=0.5, weight_decay=0.01
    ),
    Adam(lr=0.1, beta1=0.8, beta2=0.99, weight_decay=0.01): lambda p: torch.optim.Adam(
        p, 0.1, betas=(0.8, 0.99), weight_decay=0.01
    ),
    AdamW(lr=0.1, weight_decay=0.2): lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.2),
}


@pytest.mark.parametrize("options", list(TORCH))
def test_a_dense_optimizer_is_torchs_own_with_every_option_passed_on(options):
    ours, theirs = (nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2))
    fused, plain = make_dense_optimizer(options, [ours]), TORCH[options]([theirs])
    for step in range(4):
        for parameter, optimizer in ((ours, fused), (theirs, plain)):
            set_lr(optimizer, 0.1 / (step + 1))
            parameter.grad = parameter.detach() * 0.3 + step
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_parameters_that_want_no_gradient_are_left_out_and_none_at_all_make_no_optimizer():
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    assert make_dense_optimizer(Adam(), [frozen]) is None
    set_lr(None, 0.1)
    both = make_dense_optimizer(Adam(), [frozen, nn.Parameter(torch.ones(1))])
    assert len(both.param_groups[0]["params"]) == 1


@pytest.mark.parametrize("options", [FTRL(), RowWiseAdagrad()])
def test_an_optimizer_of_rows_is_refused_for_the_dense_part(options):
    name = type(options).__name__
    words = f"train.optimizer is {name}, which updates rows of tables alone; choose SGD, .* {name} to tables"
    with pytest.raises(ConfigError, match=words):
        make_dense_optimizer(options, [])
