"""Settings from the environment and from arguments."""

from typing import Any

import pytest

from gpufrag.agent.settings import AgentSettings, from_environment
from gpufrag.errors import UsageError


def test_arguments_override_the_environment() -> None:
    assert from_environment({}) == AgentSettings()
    environment = {"GPUFRAG_INTERVAL": "2", "GPUFRAG_BUDGET": "0.5"}
    assert from_environment(environment) == AgentSettings(2.0, 0.5)
    assert from_environment(environment, interval=3.0) == AgentSettings(3.0, 0.5)


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        *(({"GPUFRAG_INTERVAL": v}, {}, "(?i)interval") for v in ("0", "-1", "nan", "inf", "soon", "1e-300", "1e300")),
        *(({}, {"interval": v}, r"interval must be a number \(got .{1,80}\)$") for v in ("x", [], 10**400, {"a": 1})),
        *(({}, {"budget": v}, "share of wall time") for v in (0.0, -0.1, 1.5, float("nan"), 1e-300)),
        *(
            ({"GPUFRAG_ANCHOR": v}, {}, "(?i)anchor must be")
            for v in ("0", "0GiB", "95%", "2", "2.5", "-1%", "much", "nan", "nan%", "%", "20G")
        ),
        *(({"GPUFRAG_LEAK_THRESHOLD": v}, {}, "(?i)leak.threshold") for v in ("0", "much", "-1MB", "5M")),
    ],
)
def test_invalid_value_is_refused(environment: dict[str, str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_environment(environment, **arguments)


@pytest.mark.parametrize(("text", "share"), [("20%", 0.2), ("0.25", 0.25), (" 5 % ", 0.05), ("", None)])
def test_anchor_is_a_share_and_off_by_default(text: str, share: float | None) -> None:
    assert from_environment({"GPUFRAG_ANCHOR": text}).anchor == share
    assert from_environment({}).anchor is None


@pytest.mark.parametrize(("text", "size"), [("20GiB", 20 << 30), ("21474836480", 20 << 30), ("512 MiB", 512 << 20)])
def test_anchor_can_be_a_size(text: str, size: int) -> None:
    found = from_environment({"GPUFRAG_ANCHOR": text}).anchor
    assert (found, type(found)) == (size, int)


@pytest.mark.parametrize(("text", "size"), [("5MB", 5_000_000), ("1MiB", 1 << 20), ("4096", 4096), ("", 1_000_000)])
def test_leak_threshold_is_a_size(text: str, size: int) -> None:
    assert from_environment({"GPUFRAG_LEAK_THRESHOLD": text}).leak_threshold == size
