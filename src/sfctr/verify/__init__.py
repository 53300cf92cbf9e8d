"""Shows that a run computes what a simple one would."""

from .engine import STEPS, Finding, verify_run
from .workbench import Makers

__all__ = ["STEPS", "Finding", "Makers", "verify_run"]
