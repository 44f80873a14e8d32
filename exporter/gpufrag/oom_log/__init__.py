"""A job's log: what it tells of requests for memory that failed, by any framework. Text in, records out."""

from .oom import Oom
from .opening import log_chunks
from .reading import read_log

__all__ = ["Oom", "log_chunks", "read_log"]
