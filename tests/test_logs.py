"""The log: one line per event."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from gpufrag import logs
from gpufrag.web import limits

log = logging.getLogger("gpufrag.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.setup("info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def written(stream: io.StringIO) -> str:
    """Return the one line, without its time."""
    (line,) = stream.getvalue().splitlines()
    time, _, rest = line.partition(" ")
    assert time.startswith("time=20")
    assert time.endswith("Z")
    return rest


def test_http_requests_are_logged_in_debug_only(stream: io.StringIO) -> None:
    logging.getLogger("httpx2").info("HTTP Request: GET")
    assert stream.getvalue() == ""
    logs.setup("debug", stream)
    logging.getLogger("httpx2").info("HTTP Request: GET")
    assert written(stream) == 'level=info msg="HTTP Request: GET"'


def test_event_has_message_and_fields(stream: io.StringIO) -> None:
    logs.event(log, logging.WARNING, "files skipped", reason="torn", count=3, absent=None)
    assert written(stream) == 'level=warning msg="files skipped" reason=torn count=3'


def test_event_below_level_is_dropped(stream: io.StringIO) -> None:
    logs.event(log, logging.DEBUG, "detail")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "evil", ['a\nlevel=error msg="forged"', "a\r\nb", 'say "x"', "tab\there", "\x1b[31mred", "a=b"]
)
def test_value_cannot_forge_a_line_or_field(stream: io.StringIO, evil: str) -> None:
    logs.event(log, logging.INFO, "named", file=evil)
    line = written(stream)
    assert line.startswith('level=info msg=named file="')
    assert line.isprintable()


def test_long_value_is_cut(stream: io.StringIO) -> None:
    logs.event(log, logging.INFO, "long", text="x" * 10_000)
    assert len(written(stream)) < 500


def test_exception_is_in_the_same_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("odd\nfigure")
    except ValueError:
        log.exception("not rendered")
    line = written(stream)
    assert line.startswith('level=error msg="not rendered" error="ValueError: odd\\nfigure" at=')
    assert "test_logs.py:" in line


@pytest.mark.parametrize("name", ["asyncio", limits.log.name])
def test_repeated_message_is_one_line(stream: io.StringIO, name: str) -> None:
    for message in ["no descriptor is free"] * 1000 + ["something else"] + ["no descriptor is free"] * 1000:
        logging.getLogger(name).error(message)
    assert len(stream.getvalue().splitlines()) == 3


def test_repeated_message_returns_after_a_minute(stream: io.StringIO) -> None:
    asyncio = logging.getLogger("asyncio")
    for time in (1000.0, 1001.0, 1061.0, 5.0, 6.0):
        record = asyncio.makeRecord("asyncio", logging.ERROR, __file__, 1, "no descriptor is free", (), None)
        record.created = time
        asyncio.handle(record)
    assert len(stream.getvalue().splitlines()) == 3
