"""Turns files and frames into batches, in an order that depends only on seed and epoch."""

from .order import epoch_order, lanes_of
from .source import Source
from .sources import open_source, open_training

__all__ = ["Source", "epoch_order", "lanes_of", "open_source", "open_training"]
