"""The queries of the recheck on a real Prometheus."""

from __future__ import annotations

import pytest

from gpufrag.restarter import reasons
from gpufrag.restarter.recheck import Prometheus, check
from gpufrag.restarter.settings import PrometheusSettings
from monitoring import prometheus
from restarter.worker_rig import alert

pytestmark = pytest.mark.real


@pytest.mark.parametrize("timeout_s", [10.0, 0.5])
def test_real_prometheus_answers(tmp_path, timeout_s):
    with prometheus(tmp_path, {}) as real:
        settings = PrometheusSettings(url=real.url, timeout=timeout_s)
        ask = Prometheus(settings)
        assert ask("vector(42.5)") == 42.5
        assert ask("absent_metric") is None
        refusal = check(alert(), settings, ask, lambda alert: {})
    assert refusal is not None
    assert refusal.reason == reasons.NOT_FIRING
