"""The checks of the sidecar and of Prometheus, on a server with given answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from doctor.json_server import Answers, answering
from doctor.results import text_of
from gpufrag import __version__
from gpufrag.doctor import host, prometheus
from gpufrag.doctor.checks import Fail, Ok, Result, Unknown, Warn, examine
from gpufrag.doctor.ranks import Ranks
from gpufrag.errors import Unavailable
from gpufrag.mixin.config import Config
from gpufrag.mixin.rules import groups
from gpufrag.web.client import Client

BUILD = 'gpufrag_build_info{{python="3.11",version="{}"}} 1\n'


@pytest.fixture
def server() -> Iterator[Answers]:
    with answering({}) as answers:
        yield answers


def sidecar(url: str, tmp_path) -> Result:
    context = host.Host(Ranks(tmp_path, 0.0), lambda: pytest.fail("NVML"), Client(url))
    (check,) = [check for check in host.CHECKS if check.name == "sidecar"]
    return check.run(context)


@pytest.mark.parametrize(
    ("ready", "metrics", "kind", "text"),
    [
        ((200, "ready\n"), (200, BUILD.format(__version__)), Ok, "is ready, version"),
        ((503, "waiting for NVML\n"), (200, ""), Fail, "waiting for NVML"),
        ((200, "ready, but ranks denied: 2; share a group\n"), (200, ""), Warn, "ranks denied: 2"),
        ((200, "ready\n"), (401, "who are you?"), Warn, "its version is unknown"),
        ((200, "ready\n"), (200, "up 1\n"), Fail, "not a gpufrag sidecar"),
        ((200, "ready\n"), (200, BUILD.format("0.0.9")), Warn, "is gpufrag 0.0.9"),
    ],
)
def test_sidecar_state_is_reported(server, tmp_path, ready, metrics, kind, text):
    server.by_path |= {"/-/ready": ready, "/metrics": metrics}
    assert text in text_of(sidecar(server.url, tmp_path), kind)


def test_missing_sidecar_fails(tmp_path):
    with answering({}) as gone:
        pass
    with pytest.raises(Unavailable, match="check that the server runs"):
        sidecar(gone.url, tmp_path)


def look(server: Answers, check: str) -> Result:
    (row,) = [row for row in prometheus.CHECKS if row.name == check]
    return row.run(prometheus.Prometheus(Client(server.url)))


def data(server: Answers, path: str, content: Any) -> None:
    server.by_path[f"/api/v1/{path}"] = (200, {"status": "success", "data": content})


def test_unreachable_prometheus_fails_once():
    with answering({}) as gone:
        pass
    outcomes = list(examine("prometheus", prometheus.CHECKS, prometheus.Prometheus(Client(gone.url))))
    assert [outcome.check for outcome in outcomes] == ["reachable"]
    assert "query=" not in text_of(outcomes[0].result, Fail)


@pytest.mark.parametrize("body", ["<html>", "[", '{"status": "error"}'])
def test_server_that_is_not_prometheus_fails(server, body):
    server.by_path["/api/v1/status/buildinfo"] = (200, body)
    with pytest.raises(Unavailable, match="check the address"):
        look(server, "reachable")


def load(server: Answers, rules: list[dict[str, Any]]) -> None:
    data(server, "rules", {"groups": [{"rules": rules}]})


def shipped() -> list[dict[str, Any]]:
    rules = [rule for group in groups(Config()) for rule in group["rules"]]
    return [{"name": rule.get("alert") or rule["record"], "health": "ok"} for rule in rules]


def test_rules_that_are_missing_or_broken_are_reported(server):
    load(server, [*shipped(), {"name": "Foreign", "health": "err"}])
    assert isinstance(look(server, "rules"), Ok)
    load(server, [])
    assert "nothing restarts jobs" in text_of(look(server, "rules"), Fail)
    load(server, shipped()[:-1])
    assert shipped()[-1]["name"] in text_of(look(server, "rules"), Warn)
    load(server, [{**rule, "health": "err", "lastError": "too many series"} for rule in shipped()])
    assert "too many series" in text_of(look(server, "rules"), Fail)


QUERIES = {
    "up": prometheus.TARGETS,
    "down": prometheus.DOWN,
    "ranks": prometheus.RANKS,
    "age": prometheus.AGE,
    "pods": prometheus.WITH_POD,
    "jobs": prometheus.WITH_JOB,
}


def answer(server: Answers, **values: float) -> None:
    server.queries = {
        query: [{"metric": {}, "value": [0, str(values[name])]}] if name in values else []
        for name, query in QUERIES.items()
    }


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({"up": 2, "ranks": 16, "age": 3}, Ok, "2 sidecar(s), 16 rank(s), newest sample 3 s old"),
        ({}, Fail, "scrapes no sidecar"),
        ({"up": 2}, Warn, "2 sidecar(s) are scraped but have no rank"),
        ({"up": 1, "down": 2, "ranks": 4}, Fail, "2 sidecar(s) cannot be scraped (1 can)"),
        ({"up": 2, "ranks": 4, "age": 500}, Fail, "500 s old"),
    ],
)
def test_targets_are_counted_by_sidecar(server, values, kind, text):
    answer(server, **values)
    assert text in text_of(look(server, "targets"), kind)


def test_targets_without_job_labels_warn(server):
    answer(server)
    assert isinstance(look(server, "labels"), Warn)
    answer(server, jobs=2)
    assert isinstance(look(server, "labels"), Ok)


def listed(server: Answers, *urls: str) -> Result:
    data(server, "alertmanagers", {"activeAlertmanagers": [{"url": f"{url}/api/v2/alerts"} for url in urls]})
    return look(server, "alertmanagers")


def test_alertmanager_must_answer(server):
    with answering({}) as stopped:
        pass
    server.by_path["/-/healthy"] = (200, "ok")
    assert "no alert is delivered" in text_of(listed(server), Fail)
    assert isinstance(listed(server, server.url), Ok)
    assert "no Alertmanager answers" in text_of(listed(server, stopped.url), Fail)
    assert "no answer" in text_of(listed(server, server.url, stopped.url), Warn)
    assert isinstance(listed(server, "http://alertmanager.invalid:9093"), Unknown)
