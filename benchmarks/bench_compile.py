"""Measures what train.compile gains: a training step of the dense part, compiled against as it is.

DLRM and DCN-v2 of sfctr.models over 26 columns of ids (ready tensors in the place of rows) and 13 numbers, with torch
on one thread; forward, backward and Adam, in turn, on the same tensors. What compiling itself took is shown, too.

It would measure something else beside other work, and with a warm cache of torch's on disk (then compiling is quick: a
directory of its own is used).

    python benchmarks/bench_compile.py [--batches 128 1024 4096] [--rounds 5] [--steps 20] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from end_to_end_ours import IDS, NUMBERS, make_schema
from end_to_end_parts import DIM, HIDDEN
from origin import keep, origin
from torch import Tensor, nn

import sfctr
from sfctr.models.registry import build_model
from sfctr.spec.inputs import inputs_of
from sfctr.train.compiled import Compiled

MODELS: dict[str, dict[str, Any]] = {"dlrm": {"hidden": HIDDEN}, "dcnv2": {"hidden": HIDDEN}}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """plain_ms, compiled_ms: of a step. compile_s: of the first step of all."""

    model: str
    batch: int
    bf16: bool
    plain_ms: float
    compiled_ms: float
    compile_s: float

    def line(self) -> str:
        times = f"{self.plain_ms:.2f} | {self.compiled_ms:.2f} | {self.plain_ms / self.compiled_ms:.2f}"
        return f"| {self.model} | {self.batch} | {'bf16' if self.bf16 else 'fp32'} | {times} | {self.compile_s:.0f} |"


def measure(model: str, batch: int, bf16: bool, rounds: int, steps: int) -> Gain:
    inputs = inputs_of(make_schema(1), tuple(sfctr.Table(name, dim=DIM) for name in IDS))
    module = build_model(model, inputs, 1, MODELS[model], seed=0)
    features = {name: torch.randn(batch, 1) for name in NUMBERS}
    features |= {name: (torch.randn(batch, DIM) * 0.01).requires_grad_() for name in IDS}
    labels = (torch.rand(batch) < 0.3).float()
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    compiled = Compiled(module, frozenset({batch}))
    forms: dict[str, Callable[[], Any]] = {
        "plain": lambda: module(features),
        "compiled": lambda: compiled(features, batch),
    }
    began = time.perf_counter()
    _step(forms["compiled"], module, optimizer, features, labels, bf16)
    compile_s = time.perf_counter() - began
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds):
        for name, forward in forms.items():
            for _ in range(steps):
                began = time.perf_counter()
                _step(forward, module, optimizer, features, labels, bf16)
                if number:
                    seconds[name].append(time.perf_counter() - began)
    plain, quick = (statistics.median(seconds[name]) * 1e3 for name in forms)
    return Gain(model=model, batch=batch, bf16=bf16, plain_ms=plain, compiled_ms=quick, compile_s=compile_s)


def _step(
    forward: Callable[[], Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    features: dict[str, Tensor],
    labels: Tensor,
    bf16: bool,
) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = forward()
    torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for name in IDS:
        features[name].grad = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="*", default=[128, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/compile.json and compile.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        gains = [
            measure(model, batch, bf16, args.rounds, args.steps)
            for model in args.models
            for bf16 in (False, True)
            for batch in args.batches
        ]
    facts = origin(rounds=args.rounds, steps=args.steps, torch=torch.__version__, torch_threads=1)
    lines = ["# What compiling the dense part gains", ""]
    lines += [", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    lines += ["| model | batch | | as it is, ms | compiled, ms | times as fast | compiling, s |"]
    lines += ["|---|---:|---|---:|---:|---:|---:|", *(gain.line() for gain in gains)]
    page = "\n".join(lines) + "\n"
    print(page)
    if args.save:
        keep("compile", page, {**facts, "gains": [asdict(gain) for gain in gains]})


if __name__ == "__main__":
    main()
