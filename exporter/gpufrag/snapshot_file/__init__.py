"""Saved snapshots: what is in a file that somebody sent."""

from .reading import MAX_BYTES, load, name_of
from .recording import Recording, read_recording, read_recordings
from .saved import Saved, read

__all__ = ["MAX_BYTES", "Recording", "Saved", "load", "name_of", "read", "read_recording", "read_recordings"]
