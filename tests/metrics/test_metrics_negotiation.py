"""Which format a scraper gets."""

import pytest

from gpufrag.metrics import render
from gpufrag.metrics.view import Fleet

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "accept",
    [PROMETHEUS_2, PROMETHEUS_3, "application/openmetrics-text", 'Application/OpenMetrics-Text; version="1.0.0"'],
)
def test_openmetrics_for_those_who_prefer_it(accept):
    content_type, body = render(Fleet(0.0), accept)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/html,application/xhtml+xml,*/*;q=0.8",
        "text/plain;version=0.0.4",
        "text/plain,application/openmetrics-text;q=0.5",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=nonsense",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;version=x.y",
        ";;=,,;q",
    ],
)
def test_text_for_everybody_else(accept):
    content_type, body = render(Fleet(0.0), accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body
