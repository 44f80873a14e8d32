"""Saved snapshots and recordings."""

from .reading import MAX_BYTES, Saved, load, name_of, read

__all__ = ["MAX_BYTES", "Saved", "load", "name_of", "read"]
