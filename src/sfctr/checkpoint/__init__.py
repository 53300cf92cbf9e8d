"""Saves everything needed to go on, and loads it again."""

from .saved_model import SavedModel, open_model, save_model

__all__ = ["SavedModel", "open_model", "save_model"]
