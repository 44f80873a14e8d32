"""Whether an alert is still true, asked of a Prometheus that answers what a test has put on it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import Unavailable
from gpufrag.restarter import reasons
from gpufrag.restarter.reasons import Reason
from gpufrag.restarter.recheck import NoAnswer, Prometheus, check, checker, matchers
from gpufrag.restarter.settings import PrometheusSettings
from restarter.worker_rig import Rig, alert

SETTINGS = PrometheusSettings(url="http://prometheus:9090")


@pytest.mark.parametrize(
    ("firing", "age_s", "reason"),
    [
        (1.0, 10.0, None),
        (1.0, 120.0, None),
        (None, 10.0, reasons.NOT_FIRING),
        (1.0, 121.0, reasons.STALE),
        (1.0, None, reasons.STALE),
        (1.0, float("nan"), reasons.STALE),
    ],
)
def test_an_alert_is_true_while_it_fires_on_fresh_samples(
    firing: float | None, age_s: float | None, reason: Reason | None
) -> None:
    skip = check(alert(), SETTINGS, lambda query: firing if "ALERTS" in query else age_s)
    assert (skip.reason if skip else None) == reason


def test_who_cannot_be_asked_says_nothing_good() -> None:
    def query(text: str) -> float:
        raise NoAnswer("Prometheus answered 503")

    skip = check(alert(), SETTINGS, query)
    assert skip is not None
    assert skip.reason == reasons.UNCHECKED
    assert "503" in skip.text


def test_only_the_labels_that_are_chosen_are_asked_for() -> None:
    asked: list[str] = []
    labels = {**alert().labels, "cluster": "external", "severity": "warning"}
    check(alert(labels=labels), SETTINGS, lambda query: asked.append(query) or 1.0)
    assert asked == [
        'count(ALERTS{alertname="GpuMemoryFragmented",alertstate="firing",namespace="ml",pod="train-1"})',
        'time() - max(timestamp(gpufrag_sample_timestamp_seconds{namespace="ml",pod="train-1"}))',
    ]


@given(st.text())
def test_no_value_of_a_label_gets_out_of_its_quotes(value: str) -> None:
    parsed = promql_parser.parse(f"ALERTS{matchers({'alertname': value})}")
    (matcher,) = parsed.matchers.matchers
    assert matcher.value == value


class Scripted(BaseHTTPRequestHandler):
    """Answers what the test has put on the server."""

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Answering)
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        server.asked.append((self.path, form["query"][0], self.headers.get("authorization")))
        status, body = server.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


class Answering(HTTPServer):
    answer: tuple[int, bytes] = (200, b"")

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.asked: list[tuple[str, str, str | None]] = []


@pytest.fixture
def prometheus() -> Iterator[Answering]:
    server = Answering()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def asking(server: Answering, **settings: object) -> Prometheus:
    url = f"http://127.0.0.1:{server.server_port}/"
    return Prometheus(PrometheusSettings(url=url, **settings))  # type: ignore[arg-type]


def vector(*values: str, **changes: object) -> bytes:
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data, **changes}).encode()


def test_a_value_is_read_and_a_token_is_sent(prometheus: Answering, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    prometheus.answer = 200, vector("42.5")
    ask = asking(prometheus, bearer_file=token)
    assert ask("up") == 42.5
    token.write_text("renewed\n")
    ask("up")
    assert prometheus.asked == [("/api/v1/query", "up", f"Bearer {one}") for one in ("secret", "renewed")]


def test_no_series_is_no_value(prometheus: Answering) -> None:
    prometheus.answer = 200, vector()
    assert asking(prometheus)("up") is None


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"busy"),
        (401, b""),
        (302, b""),
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, vector("one")),
        (200, vector("1", status="error")),
        (200, b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}'),
        (200, b" " * (2 << 20)),
    ],
)
def test_what_is_no_answer_is_none(prometheus: Answering, answer: tuple[int, bytes]) -> None:
    prometheus.answer = answer
    with pytest.raises(NoAnswer):
        asking(prometheus)("up")
    assert len(prometheus.asked) == 1


def test_a_token_that_cannot_be_read_any_more_is_no_answer(prometheus: Answering, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    ask = asking(prometheus, bearer_file=token)
    token.unlink()
    with pytest.raises(NoAnswer, match="No such file"):
        ask("up")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"two\nlines"])
def test_a_token_that_is_none_is_said_at_once(tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(Unavailable, match=r"prometheus\.bearer_file: .*token"):
        checker(PrometheusSettings(url="https://x", bearer_file=token))


def test_authorities_that_cannot_be_read_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="ca_file"):
        checker(PrometheusSettings(url="https://x", ca_file=tmp_path / "none"))


def test_a_job_is_not_touched_when_its_alert_is_over(prometheus: Answering) -> None:
    prometheus.answer = 200, vector()
    rig = Rig()
    rig.worker.check = checker(PrometheusSettings(url=f"http://127.0.0.1:{prometheus.server_port}"))
    rig.send().go()
    assert rig.told == ["refused not-firing"]
    assert (rig.cluster.suspensions, rig.cluster.memory.count) == (0, 0)
