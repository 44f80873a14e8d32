"""A server that answers each path with what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Answers:
    """By path, unquoted: a status and a body, which is sent as JSON unless it is text."""

    url: str
    by_path: dict[str, tuple[int, Any]] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)


@contextmanager
def answering(by_path: Mapping[str, tuple[int, Any]]) -> Iterator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there.tokens.append(self.headers.get("authorization"))
            status, body = there.by_path.get(unquote(self.path), (404, "not found"))
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            if status == 302:
                self.send_header("location", f"{there.url}/elsewhere")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        there = Answers(f"http://127.0.0.1:{server.server_port}", dict(by_path))
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
        thread.start()
        try:
            yield there
        finally:
            server.shutdown()
            thread.join()
