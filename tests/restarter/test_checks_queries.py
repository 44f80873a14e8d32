"""The queries of the check, judged by promtool on series as a real Prometheus has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufrag.restarter.recheck import check
from gpufrag.restarter.settings import PrometheusSettings
from restarter.worker_rig import alert

EVIL = 'a"} or vector(1) or ALERTS{x="\\'
Series = list[dict[str, str]]
JOB = {"namespace": "ml", "job_name": "train"}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine (Debian: the package prometheus)")
    return found


def queries(**labels: str) -> list[str]:
    """What is asked about an alert with these labels beside its own."""
    asked: list[str] = []

    def answer(query: str) -> float:
        asked.append(query)
        return 1.0

    check(alert(labels={"alertname": "X", **JOB, **labels}), PrometheusSettings(url="http://p"), answer)
    return asked


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{told}}}", "values": values}


def judged(
    promtool: str, folder: Path, at: str, given: list[dict[str, str]], expected: dict[str, float | None]
) -> None:
    cases = [
        {"expr": expr, "eval_time": at, "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}
        for expr, value in expected.items()
    ]
    test: dict[str, Any] = {"interval": "30s", "input_series": given, "promql_expr_test": cases}
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


FIRING = series("ALERTS", "1x20 _x40", alertname="X", alertstate="firing", severity="warning", **JOB)
PENDING = series("ALERTS", "1x60", alertname="X", alertstate="pending", **JOB)
SAMPLES = [
    series("gpufrag_sample_timestamp_seconds", "0+30x20 stale", rank="0", **JOB),
    series("gpufrag_sample_timestamp_seconds", "0+30x10 stale", rank="1", **JOB),
]


@pytest.mark.real
@pytest.mark.parametrize(("at", "firing", "age_s"), [("5m", 1, 0), ("10m15s", 1, 15), ("20m", None, None)])
def test_what_fires_now_and_how_old_its_newest_sample_is(
    promtool: str, tmp_path: Path, at: str, firing: float | None, age_s: float | None
) -> None:
    first, second = queries()
    judged(promtool, tmp_path, at, [FIRING, PENDING, *SAMPLES], {first: firing, second: age_s})


@pytest.mark.real
def test_a_label_cannot_make_it_fire(promtool: str, tmp_path: Path) -> None:
    first, second = queries(pod=EVIL)
    judged(promtool, tmp_path, "5m", [FIRING, *SAMPLES], {first: None, second: None})
