"""A server with given answers by path, and by query for Prometheus's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


@dataclass
class Answers:
    """`by_path`: a status and a body, sent as JSON unless it is text. `queries`: the result of an instant query."""

    url: str
    by_path: dict[str, tuple[int, Any]] = field(default_factory=dict)
    queries: dict[str, list[Any]] = field(default_factory=dict)


@contextmanager
def answering(by_path: Mapping[str, tuple[int, Any]]) -> Iterator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*there.by_path.get(self.path, (404, "not found")))

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            result = there.queries[form["query"][0]]
            self._send(200, {"status": "success", "data": {"result": result}})

        def _send(self, status: int, body: Any) -> None:
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        there = Answers(f"http://127.0.0.1:{server.server_port}", dict(by_path))
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
        thread.start()
        try:
            yield there
        finally:
            server.shutdown()
            thread.join()
