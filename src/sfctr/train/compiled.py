"""The dense part compiled by torch.compile, for training alone: the model stays what is saved, scored and exported.

A compiled forward and backward add in another order than the model's own, so whether a batch goes through it is part
of a run's numerics and must not depend on what came before. So it is compiled for the sizes of a full batch's parts,
each as one graph of fixed shapes, and rows of any other number (an epoch's last batch) go through the model as it is:
a run that goes on finds the same code for each of its batches, and no short batch compiles anything anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sfctr.spec.errors import ConfigError, ModelError
from sfctr.spec.runfile import Train

BACKEND = "inductor"
MOST_GRAPHS = 64
"""Of one run. Where ranks have unlike parts of a batch, each number of rows has a graph of its own."""


def compiled(module: nn.Module, options: Train) -> Compiled:
    """What calls the model in training. Raises ConfigError where nothing can be compiled here."""
    if options.device == "cpu":
        require_compiler()
    return Compiled(module, full_sizes(options.batch_size, options.accumulate))


def full_sizes(batch_size: int, accumulate: int) -> frozenset[int]:
    """Rows, over all ranks, of the micro-batches of a full batch: one number, or two that differ by one."""
    cuts = [round(i * batch_size / accumulate) for i in range(accumulate + 1)]  # as Ready.micro_batches cuts
    return frozenset(last - first for first, last in pairwise(cuts))


def require_compiler() -> None:
    """Raise ConfigError where torch finds no C++ compiler, which its code for CPUs needs."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        raise ConfigError(
            "train.compile needs a C++ compiler, and torch finds none; install g++ (on Debian and Ubuntu: apt install"
            " g++), or set train.compile = false"
        ) from None


class Compiled:
    """Calls `module`, by compiled code where a batch or micro-batch of all ranks has one of `sizes` rows.

    backend: as torch.compile takes it, for tests; None: BACKEND. Hooks of the module run outside of compiled code.
    """

    def __init__(
        self, module: nn.Module, sizes: frozenset[int], backend: str | Callable[..., Any] | None = None
    ) -> None:
        from torch._dynamo.exc import TorchDynamoException  # takes seconds to load, which other runs need not wait for

        self._module, self._sizes, self._called = module, sizes, set[int]()
        self._refusal: type[Exception] = TorchDynamoException
        # Other models of this class in this process have graphs of their own, where this torch can tell them apart.
        known = signature(torch.compile).parameters
        wanted = {"recompile_limit": MOST_GRAPHS, "isolate_recompiles": True}
        more: dict[str, Any] = {name: value for name, value in wanted.items() if name in known}
        self._forward = torch.compile(module.forward, fullgraph=True, dynamic=False, backend=backend or BACKEND, **more)

    def __call__(self, features: dict[str, Tensor], whole_size: int) -> Any:
        """What the model gives for some rows. whole_size: how many they are over all ranks.

        Raises ModelError for a model that cannot be one graph.
        """
        if whole_size not in self._sizes:
            return self._module(features)
        own = vars(self._module).get("forward")
        self._module.forward = self._forward
        try:
            with nullcontext() if whole_size in self._called else _without_warnings():
                output = self._module(features)
            self._called.add(whole_size)
            return output
        except self._refusal as error:
            lines = [line.strip() for line in str(error).splitlines()]
            why = next((line for line in lines if line and not line.endswith(":")), type(error).__name__)
            raise ModelError(
                f"model '{type(self._module).__name__}' cannot be compiled ({why.rstrip('.')}); have its forward do"
                " tensor operations alone, or set train.compile = false"
            ) from error
        finally:
            if own is None:
                del self._module.forward
            else:
                self._module.forward = own


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Compiling touches what torch warns of, such as gradients of what is no leaf: nobody can act on that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
