"""Settings from the environment and from arguments."""

from __future__ import annotations

from typing import Any

import pytest

from gpufrag.agent.settings import AgentSettings, from_environment
from gpufrag.errors import UsageError


def test_default_settings() -> None:
    settings = from_environment({})
    assert (settings.interval, settings.budget, settings.publish_every) == (10.0, 0.001, 1.0)


def test_arguments_override_the_environment() -> None:
    environment = {"GPUFRAG_INTERVAL": "2", "GPUFRAG_BUDGET": "0.5"}
    assert from_environment(environment) == AgentSettings(2.0, 0.5)
    assert from_environment(environment, interval=3.0) == AgentSettings(3.0, 0.5)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1e-300", "1e300"])
def test_invalid_interval_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"(?i)interval"):
        from_environment({"GPUFRAG_INTERVAL": value})


@pytest.mark.parametrize("value", ["soon", [], 10**400, {"a": 1}])
def test_argument_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"interval must be a number \(got .{1,80}\)$"):
        from_environment({}, interval=value)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, float("nan"), 1e-300])
def test_invalid_budget_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="share of wall time"):
        from_environment({}, budget=value)


@pytest.mark.parametrize(("text", "share"), [("20%", 0.2), ("0.25", 0.25), (" 5 % ", 0.05), ("", None)])
def test_anchor_is_a_share_and_off_by_default(text: str, share: float | None) -> None:
    assert from_environment({"GPUFRAG_ANCHOR": text}).anchor == share
    assert from_environment({}).anchor is None


@pytest.mark.parametrize("text", ["0", "95%", "2", "-1%", "much", "nan", "%"])
def test_invalid_anchor_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"(?i)anchor must be"):
        from_environment({"GPUFRAG_ANCHOR": text})


@pytest.mark.parametrize(("text", "size"), [("5MB", 5_000_000), ("1MiB", 1 << 20), ("4096", 4096), ("", 1_000_000)])
def test_leak_threshold_is_a_size(text: str, size: int) -> None:
    assert from_environment({"GPUFRAG_LEAK_THRESHOLD": text}).leak_threshold == size


@pytest.mark.parametrize("text", ["0", "much", "-1MB", "5M"])
def test_invalid_leak_threshold_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"(?i)leak.threshold"):
        from_environment({"GPUFRAG_LEAK_THRESHOLD": text})
