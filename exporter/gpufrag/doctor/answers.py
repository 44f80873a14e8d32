"""GET, bounded in time and size, for the checks that ask a server."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Unavailable

TIMEOUT_S = 5.0
MAX_ANSWER = 16 << 20


class Answer(NamedTuple):
    status: int
    text: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the address that was named, and no other."""

    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


def get(url: str, bearer_file: Path | None = None) -> Answer:
    """Whatever status it has. Raises Unavailable where nothing answers."""
    try:
        request = urllib.request.Request(url)
        if bearer_file is not None:
            request.add_header("Authorization", f"Bearer {bearer_file.read_text(encoding='utf-8').strip()}")
        opened = urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as refusal:
        opened = refusal
    except (OSError, ValueError, HTTPException) as error:
        told = getattr(error, "reason", error)  # without urllib's own brackets around it
        raise Unavailable(f"{url} does not answer ({told}); is it the right address, and is it running?") from None
    try:
        with opened:
            return Answer(opened.status, _read(opened, time.monotonic() + TIMEOUT_S).decode(errors="replace"))
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{url}: its answer breaks off ({error}); look again") from None


def _read(opened: Any, deadline_s: float) -> bytes:
    """The time-out of a socket bounds each wait, and not all of them together. Raises OSError."""
    content = b""
    while len(content) < MAX_ANSWER and (chunk := opened.read1(64 << 10)):
        content += chunk
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"it is not whole within {TIMEOUT_S:g} s")
    return content


def get_json(url: str, bearer_file: Path | None = None) -> Any:
    """The JSON of a good answer. Raises Unavailable for any other."""
    answer = get(url, bearer_file)
    if answer.status != 200:
        raise Unavailable(f"{url} answers {answer.status}; is it the right address, and does it want a token?")
    try:
        return json.loads(answer.text)
    except (ValueError, RecursionError):
        raise Unavailable(f"{url} answers no JSON; is it the right address?") from None
