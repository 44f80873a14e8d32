"""Saved snapshots and recordings."""

from .reading import MAX_BYTES, Saved, load, name_of, read
from .recording import Recording, read_recording, read_recordings

__all__ = ["MAX_BYTES", "Recording", "Saved", "load", "name_of", "read", "read_recording", "read_recordings"]
