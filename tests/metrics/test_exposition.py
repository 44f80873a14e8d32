"""A scrape, byte for byte in both formats, and which format a scraper gets."""

import re
import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufrag.metrics import TABLE, FleetCollector, render
from gpufrag.metrics.exposition import OPENMETRICS, TEXT
from gpufrag.metrics.view import Fleet
from helpers import TESTS, kept

FIXTURES = TESTS / "fixtures" / "metrics"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(("accept", "file"), [("", "fleet.prom"), (PROMETHEUS_3, "fleet.openmetrics")])
def test_scrape_matches_golden_file(fleet, accept, file):
    text = render(fleet, accept)[1].decode()
    kept(FIXTURES / file, re.sub(r"gpufrag_build_info\{.*\}", 'gpufrag_build_info{python="…",version="…"}', text))


def test_golden_file_has_every_metric():
    text = (FIXTURES / "fleet.prom").read_text(encoding="utf-8")
    assert [row.name for row in TABLE if f"# TYPE {row.name} " not in text] == []


def test_both_formats_have_the_same_series(fleet):
    def series(families):
        return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}

    text, openmetrics = (render(fleet, accept)[1].decode() for accept in ("", PROMETHEUS_3))
    assert series(parse_openmetrics(openmetrics)) == series(parse_text(text))


@pytest.mark.real
def test_promtool_accepts_scrape(fleet):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=render(fleet)[1], capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        *((accept, OPENMETRICS) for accept in (
            PROMETHEUS_2, PROMETHEUS_3, "application/openmetrics-text",
            'Application/OpenMetrics-Text; version="1.0.0"',
        )),
        *((accept, TEXT) for accept in (
            "", "*/*", "text/html,application/xhtml+xml,*/*;q=0.8", "text/plain;version=0.0.4",
            "text/plain,application/openmetrics-text;q=0.5", "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=nonsense", "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;version=x.y", ";;=,,;q",
        )),
    ],
)  # fmt: skip
def test_accept_header_selects_format(accept, expected):
    content_type, body = render(Fleet(0.0), accept)
    assert content_type == expected
    assert body.endswith(b"# EOF\n") == (expected == OPENMETRICS)


def test_registry_registers_and_scrapes_collector(fleet):
    def unread():
        raise AssertionError("registering must not read the fleet")

    CollectorRegistry().register(FleetCollector(unread))
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: fleet))
    assert registry.get_sample_value("gpufrag_steps_total", {"rank": "1"}) == 120
    with pytest.raises(ValueError, match="gpufrag_allocator_allocated_bytes"):
        registry.register(FleetCollector(unread))
