"""What the reference does beside rows: torch's optimizers in their plain form, loss, schedule and a step's draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sfctr.spec.optim import SGD, Adagrad, Adam, AdamW, DenseOptimizer, Schedule
from sfctr.spec.runfile import RunFile

from .reference_rows import mix


def dense_optimizer(options: DenseOptimizer, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """torch's own, in its plain form."""
    lr, decay = options.lr, options.weight_decay
    match options:
        case SGD(momentum=momentum, nesterov=nesterov):
            return torch.optim.SGD(parameters, lr, momentum, weight_decay=decay, nesterov=nesterov, foreach=False)
        case Adagrad(eps=eps, initial_accumulator=start):
            return torch.optim.Adagrad(parameters, lr, 0.0, decay, start, eps, foreach=False)
        case Adam(beta1=beta1, beta2=beta2, eps=eps):
            return torch.optim.Adam(parameters, lr, (beta1, beta2), eps, decay, foreach=False)
        case AdamW(beta1=beta1, beta2=beta2, eps=eps):
            return torch.optim.AdamW(parameters, lr, (beta1, beta2), eps, decay, foreach=False)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """-y log p - (1 - y) log(1 - p) of logits."""
    return -labels * logsigmoid(scores) - (1 - labels) * logsigmoid(-scores)


def decay_length(run: RunFile, num_rows: int | None) -> int:
    """Steps that the schedule's decay takes; to the end of the run where the schedule names no number."""
    train, schedule = run.train, run.train.schedule
    ends = [] if num_rows is None else [train.epochs * math.ceil(num_rows / train.batch_size)]
    ends += [] if train.max_steps is None else [train.max_steps]
    if schedule.decay_steps or schedule.decay in ("none", "inverse_sqrt") or not ends:
        return schedule.decay_steps
    return max(1, min(ends) - schedule.warmup_steps)


def schedule_factor(schedule: Schedule, step: int, length: int) -> float:
    """What multiplies every learning rate at `step` (from 0)."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    after = step - warmup
    match schedule.decay:
        case "none":
            return 1.0
        case "inverse_sqrt":
            held = min(after, length) if length else after
            return max(schedule.final, 1 / math.sqrt(1 + held / max(warmup, 1)))
        case "linear":
            return 1 - (1 - schedule.final) * min(1.0, after / length)
        case "cosine":
            cosine = math.cos(math.pi * min(1.0, after / length))
            return schedule.final + (1 - schedule.final) * (1 + cosine) / 2


def seed_draws(seed: int, step: int, device: torch.device) -> None:
    """Seed torch's generators for a step (dropout), by the run's rule: splitmix64 of seed * golden ratio + step."""
    golden = 0x9E3779B97F4A7C15
    word = mix(seed * golden + step + 1 - golden) >> 1
    torch.default_generator.manual_seed(word)
    if device.type == "cuda":
        torch.cuda.manual_seed(word)
