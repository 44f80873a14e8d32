"""The checks of the sidecar and of Prometheus, on a server that answers what they might."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from doctor.json_server import Answers, answering
from gpufrag import __version__
from gpufrag.doctor import prometheus, sidecar
from gpufrag.doctor.results import Fail, Ok, Result, Warn
from gpufrag.errors import Unavailable
from gpufrag.mixin.config import Config
from gpufrag.mixin.rules import groups

BUILD = 'gpufrag_build_info{{python="3.11",version="{}"}} 1\n'


@pytest.fixture
def server() -> Iterator[Answers]:
    with answering({}) as answers:
        yield answers


def say(server: Answers, ready: tuple[int, str], metrics: tuple[int, str]) -> Result:
    server.by_path |= {"/-/ready": ready, "/metrics": metrics}
    return sidecar.ask(server.url)


def test_a_sidecar_that_is_ready_and_of_this_version(server):
    assert say(server, (200, "ready\n"), (200, BUILD.format(__version__))) == Ok(f"{server.url}: ready, {__version__}")


@pytest.mark.parametrize(
    ("ready", "metrics", "kind", "told"),
    [
        ((503, "waiting for NVML\n"), (200, ""), Fail, "waiting for NVML"),
        ((200, "ready, but ranks denied: 2; share a group\n"), (200, ""), Warn, "ranks denied: 2"),
        ((200, "ready\n"), (401, "who are you?"), Ok, "take a password"),
        ((200, "ready\n"), (200, "up 1\n"), Fail, "is it gpufrag's sidecar?"),
        ((200, "ready\n"), (200, BUILD.format("0.0.9")), Warn, "is of gpufrag 0.0.9"),
    ],
)
def test_a_sidecar_that_is_not_well_is_told(server, ready, metrics, kind, told):
    result = say(server, ready, metrics)
    assert isinstance(result, kind)
    assert told in result.text


def test_no_sidecar_at_all():
    with answering({}) as gone:
        pass
    with pytest.raises(Unavailable, match="connection refused"):
        sidecar.ask(gone.url)


@pytest.mark.parametrize("body", ["<html>", "[", '{"status": "error"}'])
def test_what_is_no_prometheus_is_told(server, body):
    server.by_path["/api/v1/rules"] = (200, body)
    with pytest.raises(Unavailable, match="address"):
        look(server, "rules")


def look(server: Answers, check: str) -> Result:
    (row,) = [row for row in prometheus.CHECKS if row.name == check]
    return row.run(prometheus.Prometheus(server.url))


def load(server: Answers, rules: list[dict[str, Any]]) -> None:
    server.by_path["/api/v1/rules"] = (200, {"status": "success", "data": {"groups": [{"rules": rules}]}})


def shipped() -> list[dict[str, Any]]:
    rules = [rule for group in groups(Config()) for rule in group["rules"]]
    return [{"name": rule.get("alert") or rule["record"], "health": "ok"} for rule in rules]


def test_rules_that_are_loaded(server):
    load(server, [*shipped(), {"name": "SomebodyElses", "health": "err"}])
    assert isinstance(look(server, "rules"), Ok)


def test_rules_that_are_missing_or_sick(server):
    load(server, [])
    assert isinstance(look(server, "rules"), Fail)
    load(server, shipped()[:-1])
    assert shipped()[-1]["name"] in look(server, "rules").text
    load(server, [{**rule, "health": "err", "lastError": "too many series"} for rule in shipped()])
    assert "too many series" in look(server, "rules").text


def answer(server: Answers, **values: float) -> None:
    queries = {
        "targets": "count(gpufrag_up)",
        "ranks": "count(gpufrag_sample_timestamp_seconds)",
        "age": "time() - max(gpufrag_sample_timestamp_seconds)",
        "pods": 'count(gpufrag_up{namespace!="", pod!=""})',
        "jobs": 'count(gpufrag_up{job_name!=""})',
    }
    for name, query in queries.items():
        result = [{"metric": {}, "value": [0, str(values[name])]}] if name in values else []
        server.by_path[f"/api/v1/query?query={query}"] = (200, {"status": "success", "data": {"result": result}})


def test_series_that_are_there_and_fresh(server):
    answer(server, targets=2, ranks=16, age=3)
    assert look(server, "series") == Ok("2 sidecar(s), 16 rank(s), the newest sample 3 s old")


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        ({}, Fail, "it scrapes no sidecar"),
        ({"targets": 2}, Warn, "none has a rank"),
        ({"targets": 2, "ranks": 4, "age": 500}, Fail, "500 s old"),
    ],
)
def test_series_that_are_missing_or_old(server, values, kind, told):
    answer(server, **values)
    result = look(server, "series")
    assert isinstance(result, kind)
    assert told in result.text


def test_labels_by_which_a_job_is_found(server):
    answer(server)
    assert isinstance(look(server, "labels"), Warn)
    answer(server, jobs=2)
    assert isinstance(look(server, "labels"), Ok)


def test_an_alertmanager_to_tell(server):
    for active, kind in (([], Fail), ([{"url": "http://am:9093/api/v2/alerts"}], Ok)):
        data = {"activeAlertmanagers": active}
        server.by_path["/api/v1/alertmanagers"] = (200, {"status": "success", "data": data})
        assert isinstance(look(server, "alertmanagers"), kind)
