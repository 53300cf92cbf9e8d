"""Shows that a run computes what a simple one would."""

from .engine import STEPS, verify_run
from .finding import Finding
from .workbench import Makers

__all__ = ["STEPS", "Finding", "Makers", "verify_run"]
