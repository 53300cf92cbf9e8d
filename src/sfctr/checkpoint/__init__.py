"""Saves everything needed to go on, and loads it again."""

from .capture import TrainingState
from .dense import require_savable
from .directory import CheckpointDirectory, Newest
from .loading import Checkpoint, open_checkpoint
from .restore import Item, Restore, compare
from .saved_model import SavedModel, open_model, save_model
from .writer import Checkpointer, Saved

__all__ = [
    "Checkpoint",
    "CheckpointDirectory",
    "Checkpointer",
    "Item",
    "Newest",
    "Restore",
    "Saved",
    "SavedModel",
    "TrainingState",
    "compare",
    "open_checkpoint",
    "open_model",
    "require_savable",
    "save_model",
]
