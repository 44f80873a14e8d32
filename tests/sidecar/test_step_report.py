"""The process that makes a report of a recording, against recordings that it must not pass on."""

from __future__ import annotations

import subprocess
import sys

from recorded_steps import recorded_step

SMALL_PAGES = """
import sys
from gpufrag.sidecar import step_report
step_report.MAX_PAGE = 1000
sys.exit(step_report.main(step_report.STEP, "a step"))
"""


def test_report_that_is_too_large_never_reaches_the_sidecar() -> None:
    """The sidecar would hold all of it before it could refuse it."""
    done = subprocess.run([sys.executable, "-c", SMALL_PAGES], input=recorded_step(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"too large" in done.stderr
