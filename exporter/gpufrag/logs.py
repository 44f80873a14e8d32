"""The log: one short line an event, `time=… level=… msg="…" key=value`, to stderr.

Modules log with the standard library; a record's fields go in `extra={"fields": {...}}` by way of `event`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TextIO

_PLAIN = re.compile(r"[A-Za-z0-9_./:@+\[\]-]{1,200}")
_MOST = 400  # characters of one value
_AGAIN_AFTER = 60.0  # seconds


def event(logger: logging.Logger, level: int, message: str, **fields: object) -> None:
    """Log `message` with its fields; a field that is None is left out."""
    shown = {key: value for key, value in fields.items() if value is not None}
    logger.log(level, message, extra={"fields": shown})


class Logfmt(logging.Formatter):
    """A record as one line, whatever is in it: a value with a line break cannot forge a second one."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "msg": record.getMessage().strip(),
            **getattr(record, "fields", {}),
            **_exception(record),
        }
        return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


class _NotAgain(logging.Filter):
    """Stops what was said just before: without a free descriptor asyncio tells of it a thousand times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._message, self._until = "", 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message == self._message and 0 <= self._until - record.created <= _AGAIN_AFTER:
            return False
        self._message, self._until = message, record.created + _AGAIN_AFTER
        return True


def _exception(record: logging.LogRecord) -> dict[str, str]:
    """The type, the text and the innermost place: enough to find it, and one line."""
    if not record.exc_info or record.exc_info[1] is None:
        return {}
    error, trace = record.exc_info[1], record.exc_info[2]
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    at = {"at": f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"} if trace else {}
    return {"error": f"{type(error).__name__}: {error}", **at}


def _value(value: object) -> str:
    text = str(value)
    text = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def setup(level: str, stream: TextIO | None = None) -> None:
    """Send this process's log to `stream` (stderr). A second call changes the level."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # a scanner's broken requests are no news
    quiet = logging.DEBUG if root.level <= logging.DEBUG else logging.WARNING
    logging.getLogger("httpx2").setLevel(quiet)  # a line for each request, and a job is looked at every few seconds
    asyncio = logging.getLogger("asyncio")
    asyncio.setLevel(logging.ERROR)
    asyncio.filters[:] = [_NotAgain()]
    logging.getLogger("gpufrag.web.limits").filters[:] = [_NotAgain()]  # where each scrape takes too long
