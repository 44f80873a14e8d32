"""Alertmanager's webhook as records: valid and rejected calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpufrag.errors import BadInput, NewerVersion
from gpufrag.restarter.alerts import MAX_ALERTS, MAX_TEXT, MAX_TEXTS, Alert, parse
from restarter.webhook_bodies import ALERT, CALL, body


def one(**changes: Any) -> Alert:
    (alert,) = parse(body(alerts=[{**ALERT, **changes}]))
    return alert


def test_call_is_parsed():
    firing, resolved = parse(body())
    assert (firing.status, resolved.status) == ("firing", "resolved")
    assert (firing.name, firing.namespace, firing.pod) == ("GpuMemoryFragmented", "ml", "train-1")
    assert firing.fingerprint == "8f2c71d9a0b1c2d3"
    assert firing.starts_at_s == pytest.approx(1795953600.123, abs=0.001)


def test_pod_label_precedes_the_annotation():
    assert one(labels={**ALERT["labels"], "pod": "train-7"}).pod == "train-7"


def test_unknown_keys_are_ignored():
    newer = {"notification_reason": "first notification", "routeLabels": {"a": "b"}}
    alert = {**ALERT, "receivers": [1, 2]}
    assert parse(body(alerts=[alert], **newer)) == parse(body(alerts=[ALERT]))


def test_kept_texts_are_bounded():
    long = one(labels={**ALERT["labels"], "pod": "p" * 10**5}, annotations={str(i): "é" * 2000 for i in range(100)})
    assert long.pod == "p" * MAX_TEXT
    assert sum(len(key) + len(value) for key, value in long.annotations.items()) <= MAX_TEXTS
    assert one(labels={"n" * (MAX_TEXTS + 1): ""}).labels == {}


@pytest.mark.parametrize("version", ["3", "5", 4, None, [], {}])
def test_other_version_is_rejected(version):
    for data in (body(version=version), json.dumps({**CALL, "version": version, "alerts": 7}).encode()):
        with pytest.raises(NewerVersion, match="version is not 4"):
            parse(data)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"alerts": None}, "alerts is not a list"),
        ({"alerts": [ALERT] * (MAX_ALERTS + 1)}, "alerts is not a list of at most"),
        ({"alerts": [ALERT, 1]}, r"alerts\[1\] is not an object"),
        ({"alerts": [{**ALERT, "status": "pending"}]}, r"alerts\[0\].status is neither"),
        ({"alerts": [{**ALERT, "labels": {"a": 1}}]}, r"alerts\[0\].labels is not an object of strings"),
        ({"alerts": [{**ALERT, "annotations": []}]}, r"alerts\[0\].annotations is not an object of strings"),
        ({"alerts": [{**ALERT, "startsAt": "yesterday"}]}, r"alerts\[0\].startsAt is not a time"),
    ],
)
def test_invalid_value_is_rejected(changes, text):
    with pytest.raises(BadInput, match=text):
        parse(body(**changes))


@pytest.mark.parametrize("data", [b"", b"\xff", b"null", b"[]", b"{", b"[" * 100_000, b'{"version": NaN}', b"1" * 5000])
def test_other_body_is_rejected(data):
    with pytest.raises(BadInput):
        parse(data)


def test_times_have_any_zone_and_zero_means_none():
    assert one(startsAt="2026-11-29T14:00:00+02:00").starts_at_s == one(startsAt="2026-11-29T12:00:00Z").starts_at_s
    assert one(startsAt="0001-01-01T00:00:00Z").starts_at_s is None


@pytest.mark.parametrize("fingerprint", ["", "../../etc", 7, None])
def test_invalid_fingerprint_is_replaced(fingerprint):
    found = one(fingerprint=fingerprint).fingerprint
    assert found == one(fingerprint=None).fingerprint
    assert len(found) == 16


def test_lone_surrogate_is_replaced():
    assert one(labels={"alertname": "\ud800"}).name.encode()
