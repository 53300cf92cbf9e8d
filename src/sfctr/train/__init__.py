"""Runs the loop."""

from .fit import fit, next_run_dir, train_run
from .run import Run

__all__ = ["Run", "fit", "next_run_dir", "train_run"]
