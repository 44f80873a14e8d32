"""Saved snapshots: what is in a file that somebody sent."""

from .reading import MAX_BYTES, load

__all__ = ["MAX_BYTES", "load"]
