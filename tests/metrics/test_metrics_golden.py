"""A scrape, byte for byte in both formats, and what other readers of these formats say of it."""

import re
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufrag.metrics import TABLE, render
from helpers import TESTS, kept

FIXTURES = TESTS / "fixtures" / "metrics"
ACCEPT_OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def _scrape(fleet, accept=""):
    return render(fleet, accept)[1].decode()


def _without_build(text):
    return re.sub(r"gpufrag_build_info\{.*\}", 'gpufrag_build_info{python="…",version="…"}', text)


def test_text(fleet):
    kept(FIXTURES / "fleet.prom", _without_build(_scrape(fleet)))


def test_openmetrics(fleet):
    kept(FIXTURES / "fleet.openmetrics", _without_build(_scrape(fleet, ACCEPT_OPENMETRICS)))


def test_both_formats_say_the_same(fleet):
    def series(families):
        return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}

    text = series(parse_text(_scrape(fleet)))
    assert series(parse_openmetrics(_scrape(fleet, ACCEPT_OPENMETRICS))) == text


def test_every_metric_of_the_table_is_in_the_recorded_scrape(fleet):
    text = _scrape(fleet)
    assert [row.name for row in TABLE if f"# TYPE {row.name} " not in text] == []


@pytest.mark.real
def test_promtool_has_nothing_to_say(fleet):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine (Debian: the package prometheus)")
    scrape = render(fleet)[1]
    result = subprocess.run([promtool, "check", "metrics"], input=scrape, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
