"""The process that makes a report of a recording, against recordings that it must not pass on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufrag.errors import Unavailable
from gpufrag.sidecar import step_report
from gpufrag.sidecar.step_report import PageCache, StepReports
from gpufrag.wire.folder import FileName
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


def test_report_shows_the_newest_of_recording_and_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_report, "_make", lambda path, title: path.name.encode())
    name, reports = FileName("host", 1, 1000), StepReports(PageCache())
    with pytest.raises(Unavailable, match="no step"):
        reports.page(tmp_path, name)
    for time_ns, file in enumerate((name.heap, name.recording, name.heap)):
        (tmp_path / file).touch()
        os.utime(tmp_path / file, ns=(time_ns, time_ns))
        assert reports.page(tmp_path, name) == file.encode()


def test_cache_keeps_the_pages_used_last_within_its_bytes() -> None:
    cache = PageCache(most=10)
    for key in ("a", "b"):
        cache.put(key, b"1234")
    assert cache.get("a") == b"1234"
    cache.put("c", b"12345")
    assert [cache.get(key) for key in ("a", "b", "c")] == [b"1234", None, b"12345"]
    cache.put("d", b"1234567890")
    assert [cache.get(key) for key in ("a", "c", "d")] == [None, None, b"1234567890"]


def test_largest_page_fits_into_the_cache() -> None:
    assert step_report.MAX_PAGE <= step_report.MAX_KEPT
