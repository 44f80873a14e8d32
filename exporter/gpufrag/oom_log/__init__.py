"""Finds the out-of-memory errors of any framework in a job's log."""

from .log_file import log_chunks
from .messages import Oom
from .reading import read_log

__all__ = ["Oom", "log_chunks", "read_log"]
