"""Samples are not trusted: a bad one must not break the scrape or hide other ranks."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpufrag.errors import BadInput
from gpufrag.metrics import families, render
from gpufrag.metrics.view import CollectorResult, Fleet, RankView
from gpufrag.wire.sample import AgentHealth, Sums, decode, encode

NASTY = st.one_of(st.none(), st.sampled_from([-1, 10**400, "\ud800", True]), st.floats(), st.integers(), st.text())


def _leaves(raw, path=()):
    """The path to each value of nested JSON."""
    if not isinstance(raw, dict | list):
        return [path]
    items = raw.items() if isinstance(raw, dict) else enumerate(raw)
    return [leaf for key, value in items for leaf in _leaves(value, (*path, key))]


def _with_value(raw, path, value):
    """A copy of `raw` with another value at the end of `path`."""
    if not path:
        return value
    copy = raw.copy()
    copy[path[0]] = _with_value(raw[path[0]], path[1:], value)
    return copy


def _read(raw):
    """Like the sidecar: a file that is not a sample is skipped."""
    try:
        return [RankView(decode(json.dumps(raw).encode()))]
    except BadInput:
        return []


def _parsed(fleet):
    body = render(fleet, "application/openmetrics-text")[1].decode()
    return [(s.name, s.labels, s.value) for f in text_string_to_metric_families(body) for s in f.samples]


@pytest.fixture
def of_rank(a_process):
    """A fleet of one rank with the given devices."""
    return lambda *devices: Fleet(0.0, (RankView(a_process(*devices, rank=0)),))


def _assert_no_series_twice(fleet):
    series = [(s.name, *sorted(s.labels.items())) for family in families(fleet) for s in family.samples]
    assert len(set(series)) == len(series)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), NASTY), min_size=1, max_size=5))
def test_broken_sample_hides_no_other_rank(fleet, changes):
    first, second, *_ = fleet.ranks
    raw = json.loads(encode(second.sample))
    leaves = _leaves(raw)
    for where, value in changes:
        raw = _with_value(raw, leaves[int(where * len(leaves))], value)
    mixed = replace(fleet, ranks=(first, *_read(raw)))
    _assert_no_series_twice(mixed)
    assert ("gpufrag_steps_total", {"rank": "0"}, 120.0) in _parsed(mixed)


@pytest.mark.parametrize("conf", ['a"b', "a\nb", "a\\b", "é🙂", "\x00\r", "}{,=", 'a="b",rank="7"'])
def test_label_value_may_be_any_text(a_device, of_rank, conf):
    device = replace(a_device("train-cap4"), alloc_conf=conf)
    parsed = _parsed(of_rank(device))
    assert [labels["alloc_conf"] for name, labels, _ in parsed if name == "gpufrag_process_info"] == [conf]


def test_label_value_is_cut_and_valid_utf8(a_device, of_rank):
    device = replace(a_device("train-cap4"), alloc_conf="x" * 100_000, backend="\ud800")
    parsed = _parsed(of_rank(device))
    (info,) = [labels for name, labels, _ in parsed if name == "gpufrag_process_info"]
    assert info["alloc_conf"] == "x" * 255 + "…"
    assert info["backend"] == "?"


def test_label_values_equal_after_cut_are_one_series(a_process):
    health = AgentHealth(errors={"x" * 300: 1, "x" * 301: 2})
    _assert_no_series_twice(Fleet(0.0, (RankView(replace(a_process(rank=0), health=health)),)))


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 10**400])
def test_impossible_value_is_absent(a_process, value):
    fleet = Fleet(0.0, (RankView(a_process(rank=0, steps=value)),), collectors={"nvml": CollectorResult(True, value)})
    names = {name for name, *_ in _parsed(fleet)}
    assert "gpufrag_up" in names
    assert not names & {"gpufrag_steps_total", "gpufrag_collector_duration_seconds"}


def test_histogram_with_impossible_count_is_absent(a_device, of_rank):
    device = a_device("train-cap4")
    (snapshot,) = device.snapshots
    large = replace(snapshot.measured.large, free_block_sizes=[10**400] * len(snapshot.measured.large.free_block_sizes))
    device = replace(device, snapshots=(replace(snapshot, measured=replace(snapshot.measured, large=large)),))
    parsed = _parsed(of_rank(device))
    assert {labels["pool"] for name, labels, _ in parsed if "_gsum" in name} == {"small"}


@pytest.mark.parametrize(
    ("moments", "shown"), [(("timer", "timer"), 1), (("x" * 300, "x" * 301), 0)], ids=["equal", "alike when cut"]
)
def test_duplicate_device_or_moment_appears_once(a_device, of_rank, moments, shown):
    device = a_device("train-cap4", moments=moments)
    fleet = of_rank(device, device)
    _assert_no_series_twice(fleet)
    times = [value for name, _, value in _parsed(fleet) if name == "gpufrag_snapshot_timestamp_seconds"]
    assert times == [device.snapshots[shown].time]


@pytest.mark.parametrize("frameworks", [("",), ("x" * 300, "x" * 301)], ids=["none", "alike when cut"])
def test_frameworks_with_equal_labels_appear_once(a_device, of_rank, frameworks):
    device = a_device("train-cap4")
    others = [replace(device, framework=framework) for framework in frameworks]
    fleet = of_rank(device, *others)
    shown = [name for name, _, _ in _parsed(fleet) if name == "gpufrag_process_info"]
    assert len(shown) == (1 if frameworks == ("",) else 2)


def test_free_memory_from_snapshot_and_sums_appears_once(a_device, of_rank):
    device = replace(a_device("train-cap4", moments=("timer",)), sums=Sums(1.0, free_total=5, free_cached=5))
    fleet = of_rank(device)
    (value,) = [v for name, _, v in _parsed(fleet) if name == "gpufrag_allocator_free_total_bytes"]
    assert value == device.snapshots[0].measured.free_total


def test_scrape_does_not_reveal_host_name(fleet):
    assert b"node-7" not in render(fleet)[1]
