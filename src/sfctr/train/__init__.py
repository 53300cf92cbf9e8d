"""Runs the loop."""

from .fit import fit, train_run
from .run import Run
from .run_dir import next_run_dir

__all__ = ["Run", "fit", "next_run_dir", "train_run"]
