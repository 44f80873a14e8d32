"""Fixtures that every test folder shares, and the option by which CI forbids a silent skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from helpers import GOLDEN_NAMES, GoldenCase, golden_case_named

hypothesis.settings.register_profile("gpufrag", deadline=None)  # a slow machine is no failure
hypothesis.settings.load_profile("gpufrag")


@pytest.fixture(params=GOLDEN_NAMES)
def golden_case(request: pytest.FixtureRequest) -> GoldenCase:
    """Every recorded case in turn, or those that `parametrize("golden_case", names, indirect=True)` names."""
    return golden_case_named(request.param)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], GoldenCase]:
    """One recorded case by its name."""
    return golden_case_named


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forbid-skips", action="store_true", help="fail if any test but those marked gpu is skipped")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--forbid-skips"):
        config.pluginmanager.register(SkipGuard(), "skip-guard")


class SkipGuard:
    """Turns a run in which something was skipped into a failed one, and names what it was."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected_failure = hasattr(report, "wasxfail")  # pytest reports those as skipped too
        if report.skipped and not expected_failure and "gpu" not in report.keywords:
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self.skipped:
            terminalreporter.write_line(f"SKIPPED although skips are forbidden here: {nodeid}", red=True)
