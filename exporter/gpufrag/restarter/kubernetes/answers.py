"""What an API server's refusal means. Its body need not be a Status, nor JSON: a proxy has its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Away, ClusterError, Conflict, Denied, Invalid, NotFound, TooMany

MAX_TEXT = 256
"""Of a message that the server chose; it may hold what is none of our log's business."""


def error_of(status: int, headers: Mapping[str, str], content: bytes, what: str) -> ClusterError:
    """The error that an answer outside 2xx stands for; `what` was asked. `headers`: any case, as the client gives."""
    told = _told(content)
    text = f"{what}: answered {status}{_message(told)}"
    if status == 429 or status >= 500:
        kind = TooMany if status == 429 else Away
        return kind(f"{text}; it is worth another try", _retry_after_s(headers, told))
    if status in _FINAL:
        return _FINAL[status](text)
    if status == 422 and _names_uid(told):
        return Conflict(f"{text}; another object has taken its name")
    return Invalid(text)


def decoded(content: bytes, what: str) -> Any:
    """The JSON of a good answer. Raises Away for anything else."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Away(
            f"{what}: answered no JSON: is it an API server? Look at the address that it is reached by"
        ) from None


def _unauthorized(text: str) -> Denied:
    return Denied(f"{text}; the credentials are not good, or no longer: renew them")


def _forbidden(text: str) -> Denied:
    return Denied(f"{text}; let an administrator grant it, or leave this kind out")


def _again(text: str) -> Away:
    return Away(f"{text}; it is worth another try")


_FINAL: Mapping[int, Callable[[str], ClusterError]] = {
    401: _unauthorized,
    403: _forbidden,
    404: NotFound,
    408: _again,
    409: Conflict,
    410: _again,  # a list that took too long to page through
}


def _told(content: bytes) -> Mapping[str, Any]:
    """The Status object in the body, or nothing."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) and told.get("kind") == "Status" else {}


def _message(told: Mapping[str, Any]) -> str:
    message = " ".join(str(told.get("message", "")).split())
    return f": {message[:MAX_TEXT]}" if message else ""


def _retry_after_s(headers: Mapping[str, str], told: Mapping[str, Any]) -> float | None:
    """From the header, else from the Status; a date, which the header may hold too, counts as nothing said."""
    said = headers.get("Retry-After") or str((told.get("details") or {}).get("retryAfterSeconds") or "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 8 else None


def _names_uid(told: Mapping[str, Any]) -> bool:
    causes = (told.get("details") or {}).get("causes") or ()
    return any(isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in causes)
