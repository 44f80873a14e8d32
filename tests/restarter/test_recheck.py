"""The recheck in Prometheus: its queries, judged by promtool on real series, and its HTTP client."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import promql_parser
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import monitoring
from gpufrag.errors import Unavailable
from gpufrag.restarter import reasons
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.recheck import NoAnswer, Prometheus, check, checker, matchers
from gpufrag.restarter.settings import PrometheusSettings
from restarter.worker_rig import Rig, alert

SETTINGS = PrometheusSettings(url="http://prometheus:9090")


def pod_of(alert: Alert) -> dict[str, str]:
    return {"namespace": alert.namespace or "", "pod": alert.pod or ""}


@pytest.mark.parametrize(
    ("firing", "age_s", "reason"),
    [
        (1.0, 10.0, None),
        (1.0, 120.0, None),
        (None, 10.0, reasons.NOT_FIRING),
        (1.0, 121.0, reasons.STALE_SAMPLE),
        (1.0, None, reasons.STALE_SAMPLE),
        (1.0, float("nan"), reasons.STALE_SAMPLE),
    ],
)
def test_alert_holds_while_it_fires_on_fresh_samples(firing, age_s, reason):
    refusal = check(alert(), SETTINGS, lambda query: firing if "ALERTS" in query else age_s, pod_of)
    assert (refusal.reason if refusal else None) == reason


def test_prometheus_that_does_not_answer_confirms_nothing():
    def query(text: str) -> float:
        raise NoAnswer("Prometheus answered 503")

    refusal = check(alert(), SETTINGS, query, pod_of)
    assert refusal is not None
    assert refusal.reason == reasons.PROMETHEUS_UNAVAILABLE
    assert "503" in str(refusal)


def queries(settings: PrometheusSettings = SETTINGS, worst_pod: str = "", **labels: str) -> list[str]:
    asked: list[str] = []

    def answer(query: str) -> float:
        asked.append(query)
        return 1.0

    annotations = {"worst_pod": worst_pod} if worst_pod else {}
    check(alert(labels={"alertname": "X", **labels}, annotations=annotations), settings, answer, pod_of)
    return asked


def test_queries_contain_the_configured_labels_only():
    assert queries(namespace="ml", job_name="train", cluster="a", severity="warning", worst_pod="train-1") == [
        'count(ALERTS{alertname="X",alertstate="firing",gpufrag_action="restart",'
        'job="",job_name="train",namespace="ml",pod=""})',
        'time() - max(timestamp(gpufrag_sample_timestamp_seconds{job_name="train",namespace="ml",pod="train-1"}))',
    ]


@given(st.text())
def test_label_value_stays_inside_its_quotes(value):
    parsed = promql_parser.parse(f"ALERTS{matchers({'alertname': value})}")
    (matcher,) = parsed.matchers.matchers
    assert matcher.value == value


@pytest.fixture
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    return found


JOB = {"namespace": "ml", "job_name": "train"}
EVIL = 'a"} or vector(1) or ALERTS{x="\\'


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def firing(name: str, values: str = "1x20 _x40", **labels: str) -> dict[str, str]:
    return series("ALERTS", values, alertname=name, severity="warning", **{"alertstate": "firing", **labels})


SERIES = [
    firing("X", gpufrag_action="restart", **JOB),
    firing("X", "1x60", alertstate="pending", gpufrag_action="restart", **JOB),
    firing("Harmless", "1x60", **JOB),
    firing("X", "1x60", gpufrag_action="restart", namespace="ml", job_name="other"),
    series("gpufrag_sample_timestamp_seconds", "0+30x20 stale", rank="0", pod="train-0", **JOB),
    series("gpufrag_sample_timestamp_seconds", "0+30x10 stale", rank="1", pod="train-0", **JOB),
    series("gpufrag_sample_timestamp_seconds", "0+30x60", pod="other-0", namespace="ml", job_name="other"),
]


def judge(promtool: str, folder: Path, at: str, expected: dict[str, float | None]) -> None:
    cases = [
        {"expr": expr, "eval_time": at, "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}
        for expr, value in expected.items()
    ]
    test: dict[str, Any] = {"interval": "30s", "input_series": SERIES, "promql_expr_test": cases}
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.real
@pytest.mark.parametrize(("at", "count", "age_s"), [("5m", 1, 0), ("10m15s", 1, 15), ("20m", None, None)])
def test_queries_find_the_alert_and_its_newest_sample(promtool, tmp_path, at, count, age_s):
    first, second = queries(**JOB, worst_pod="train-0")
    judge(promtool, tmp_path, at, {first: count, second: age_s})


@pytest.mark.real
@pytest.mark.parametrize(
    ("labels", "worst_pod", "count", "age_s"),
    [
        ({"alertname": "Harmless", **JOB}, "train-0", None, 0),  # it fires, and does not ask for a restart
        ({"namespace": "ml"}, "train-0", None, 0),  # a missing label must not match another job's alert
        ({"namespace": "ml", "job_name": "other"}, "train-0", 1, None),  # nor may the pod be another job's
        ({**JOB, "pod": EVIL}, "", None, None),
    ],
)
def test_forged_alert_is_not_confirmed(promtool, tmp_path, labels, worst_pod, count, age_s):
    first, second = queries(worst_pod=worst_pod, **labels)
    judge(promtool, tmp_path, "5m", {first: count, second: age_s})


class Scripted(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, FakePrometheus)
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        server.asked.append((self.path, form["query"][0], self.headers.get("authorization")))
        status, body = server.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


class FakePrometheus(HTTPServer):
    answer: tuple[int, bytes] = (200, b"")

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.asked: list[tuple[str, str, str | None]] = []

    def settings(self, **settings: Any) -> PrometheusSettings:
        return PrometheusSettings(url=f"http://127.0.0.1:{self.server_port}/", **settings)


@pytest.fixture
def prometheus():
    server = FakePrometheus()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def vector(*values: str, **changes: object) -> bytes:
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data, **changes}).encode()


def test_token_is_read_for_each_query(prometheus, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    prometheus.answer = 200, vector("42.5")
    ask = Prometheus(prometheus.settings(bearer_file=token))
    assert ask("up") == 42.5
    token.write_text("renewed\n")
    ask("up")
    assert prometheus.asked == [("/api/v1/query", "up", f"Bearer {one}") for one in ("secret", "renewed")]
    token.unlink()
    with pytest.raises(NoAnswer, match="No such file"):
        ask("up")


def test_no_series_is_none(prometheus):
    prometheus.answer = 200, vector()
    assert Prometheus(prometheus.settings())("up") is None


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
def test_unusable_answer_is_an_error(prometheus, answer):
    prometheus.answer = answer
    with pytest.raises(NoAnswer):
        Prometheus(prometheus.settings())("up")
    assert len(prometheus.asked) == 1


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_unusable_token_file_is_an_error_at_start(tmp_path, content):
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(Unavailable, match="token file"):
        checker(PrometheusSettings(url="https://x", bearer_file=token), pod_of)


def test_unusable_ca_file_is_an_error_at_start(tmp_path):
    with pytest.raises(Unavailable, match="CA file"):
        checker(PrometheusSettings(url="https://x", ca_file=tmp_path / "none"), pod_of)


def test_job_whose_alert_ended_is_not_touched(prometheus):
    prometheus.answer = 200, vector()
    rig = Rig()
    rig.worker.recheck = checker(prometheus.settings(), pod_of)
    rig.send().go()
    assert rig.outcomes == ["refused not-firing"]
    assert (rig.backend.suspensions, rig.backend.record.count) == (0, 0)


@pytest.mark.real
@pytest.mark.parametrize("timeout_s", [10.0, 0.5])
def test_real_prometheus_answers(tmp_path, timeout_s):
    with monitoring.prometheus(tmp_path, {}) as real:
        settings = PrometheusSettings(url=real.url, timeout=timeout_s)
        ask = Prometheus(settings)
        assert ask("vector(42.5)") == 42.5
        assert ask("absent_metric") is None
        refusal = check(alert(), settings, ask, lambda alert: {})
    assert refusal is not None
    assert refusal.reason == reasons.NOT_FIRING
