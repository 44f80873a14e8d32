"""HTTP requests to servers that may be slow, broken or hostile: bounded in time and size, without redirects.

It connects directly: proxy variables of the environment are ignored.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from ..errors import Unavailable, UsageError
from ..units import format_duration

CHUNK = 64 << 10
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class NotListening(Unavailable):
    """No server listens at the address."""


class ConnectionLost(Unavailable):
    """The server closed the connection, or TLS failed."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server, whatever its status. A redirect is not followed."""

    url: str
    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Return the decoded body of an answer with status 200. Raises Unavailable for any other answer."""
        if self.status != 200:
            login = "; it requires a token or password"
            hint = {401: login, 403: login, 404: "; check the address"}.get(self.status, "")
            raise Unavailable(f"{self.url} answered with status {self.status}{hint}")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise Unavailable(f"{self.url} did not answer with JSON; check the address") from None


@dataclass(frozen=True)
class Client:
    """Requests to one server. Every request opens a connection and sends the token that the file holds then.

    `timeout_s` bounds the whole request. `server_name` is the name in the certificate, if it differs from the address.
    `context` replaces the TLS settings of `ca_file`.
    """

    base_url: str
    timeout_s: float = 5.0
    max_bytes: int = 16 << 20
    bearer_file: Path | None = None
    ca_file: Path | None = None
    server_name: str | None = None
    context: ssl.SSLContext | None = None

    def check(self) -> None:
        """Raise UsageError for a bad address, Unavailable for a file that cannot be used."""
        require_url(self.base_url, "the address")
        self._headers()
        tls_context(self.ca_file)

    def get(self, path: str) -> Answer:
        """Raises Unavailable if there is no complete answer in time."""
        return self._request("GET", path, None, {})

    def post_json(self, path: str, fields: Mapping[str, Any]) -> Answer:
        """Raises Unavailable if there is no complete answer in time."""
        return self._request("POST", path, json.dumps(dict(fields)).encode(), {"content-type": JSON})

    def post_form(self, path: str, fields: Mapping[str, str]) -> Answer:
        """Raises Unavailable if there is no complete answer in time."""
        return self._request("POST", path, urlencode(fields).encode(), {"content-type": FORM})

    def _headers(self) -> dict[str, str]:
        return {} if self.bearer_file is None else {"authorization": f"Bearer {read_token(self.bearer_file)}"}

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(self.base_url)
        url = self.base_url.rstrip("/") + path
        sent = {**headers, **self._headers()}
        connection = self._connection(parts.scheme, parts.hostname or "", parts.port)
        deadline = _Deadline(connection, self.timeout_s)
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, sent)
            answer = connection.getresponse()
            content = _read(answer, self.max_bytes, url)
        except ConnectionRefusedError:
            raise NotListening(f"cannot reach {url}: connection refused; check that the server runs there") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            lost = isinstance(error, (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected))
            kind = ConnectionLost if lost and not deadline.passed else Unavailable
            raise kind(f"cannot reach {url}: {deadline.reason(error)}") from None
        finally:
            deadline.cancel()
            connection.close()
        if deadline.passed:  # the end of a body without a length may be our own
            raise Unavailable(f"cannot reach {url}: {deadline.reason()}")
        return Answer(url, answer.status, content)

    def _connection(self, scheme: str, host: str, port: int | None) -> _Connection:
        if scheme == "http":
            return _Connection(host, port or 80, self.timeout_s, None, "")
        context = self.context or tls_context(self.ca_file)
        return _Connection(host, port or 443, self.timeout_s, context, self.server_name or host)


class _Connection(http.client.HTTPConnection):
    """HTTP or HTTPS whose socket is known during the handshake too, so that a deadline can end it."""

    def __init__(self, host: str, port: int, timeout: float, context: ssl.SSLContext | None, name: str) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls, self._name = context, name
        self.open_socket: socket.socket | None = None  # http.client forgets its own before the body is read

    def connect(self) -> None:
        super().connect()
        self.open_socket = self.sock
        if self._tls is not None:
            wrapped = self._tls.wrap_socket(self.sock, server_hostname=self._name, do_handshake_on_connect=False)
            self.sock = self.open_socket = wrapped
            wrapped.do_handshake()


class _Deadline:
    """Ends a connection after a time. A socket's own timeout bounds each wait, but not their sum."""

    def __init__(self, connection: _Connection, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._ends = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True
        self._timer.start()

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._ends

    def cancel(self) -> None:
        self._timer.cancel()

    def reason(self, error: Exception | None = None) -> str:
        if self.passed or isinstance(error, TimeoutError):
            return f"no complete answer within {format_duration(self._seconds)}"
        return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # closed in the meantime
            if self._connection.open_socket is not None:
                socket.socket.shutdown(self._connection.open_socket, socket.SHUT_RDWR)


def _read(answer: http.client.HTTPResponse, most: int, url: str) -> bytes:
    chunks, left = [], most
    while chunk := answer.read1(min(CHUNK, left + 1)):
        chunks.append(chunk)
        left -= len(chunk)
        if left < 0:
            raise Unavailable(f"{url} answered with more than {most} bytes")
    if answer.length:  # read1 does not check it
        raise http.client.IncompleteRead(b"".join(chunks), answer.length)
    return b"".join(chunks)


def require_url(url: str, place: str) -> None:
    """Raise UsageError unless it is a server's address. The message does not quote it: it may hold a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of brackets
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url or "?" in url or "#" in url:
        raise UsageError(f"{place} is not a server address; write http://HOST:PORT")
    if "@" in parts.netloc:
        raise UsageError(f"{place} contains a user or a password, which logs would show; use a token file instead")


def read_token(path: Path) -> str:
    """Return the first token in a file. Raises Unavailable."""
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a token"
        raise Unavailable(f"cannot read token file {path}: {reason}") from None
    if not words or not words[0].isprintable():
        raise Unavailable(f"cannot use token file {path}: it must contain a token")
    return words[0]


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that trusts the CAs in the file, by default the system's. Raises Unavailable."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        reason = error.strerror or error
        raise Unavailable(f"cannot use CA file {ca_file}: {reason}; it must contain PEM certificates") from None
