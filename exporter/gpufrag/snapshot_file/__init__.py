"""Saved snapshots: what is in a file that somebody sent."""

from .reading import MAX_BYTES, load, name_of
from .saved import Saved, read

__all__ = ["MAX_BYTES", "Saved", "load", "name_of", "read"]
