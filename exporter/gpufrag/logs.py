"""The log: one line per event, `time=… level=… msg="…" key=value`, on stderr.

Modules log with the standard library; `event` adds fields to a record.
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
    """Log `message` with its fields, without those that are None."""
    shown = {key: value for key, value in fields.items() if value is not None}
    logger.log(level, message, extra={"fields": shown})


class Logfmt(logging.Formatter):
    """Formats a record as one line: a value with a line break cannot forge another line."""

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


class _Deduplicate(logging.Filter):
    """Drops a repeated message for a minute: out of descriptors, asyncio logs a thousand lines a second."""

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
    """Return the exception's type, text and innermost location."""
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
    """Log to `stream` (default: stderr) at this level; call again to change it."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # broken requests of scanners are noise
    quiet = logging.DEBUG if root.level <= logging.DEBUG else logging.WARNING
    logging.getLogger("httpx2").setLevel(quiet)  # it logs every request
    asyncio = logging.getLogger("asyncio")
    asyncio.setLevel(logging.ERROR)
    asyncio.filters[:] = [_Deduplicate()]
    logging.getLogger("gpufrag.web.limits").filters[:] = [_Deduplicate()]  # logs each slow scrape
