"""The demo: recorded traces through the real agent, its files, a real sidecar and /metrics."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import types

import pytest

from gpufrag.commands import demo as demo_command
from gpufrag.demo import table, traces
from gpufrag.errors import Unavailable

METRICS = """\
# TYPE gpufrag_steps_total counter
gpufrag_steps_total{rank="0"} 7
gpufrag_steps_total{rank="10"} 9
# TYPE gpufrag_allocator_reserved_bytes gauge
gpufrag_allocator_reserved_bytes{rank="10",device="0",pool="large"} 1024
gpufrag_allocator_reserved_bytes{rank="10",device="0",pool="small"} 1024
# TYPE gpufrag_allocator_free_total_bytes gauge
gpufrag_allocator_free_total_bytes{rank="10",device="0",at="boundary"} 900
gpufrag_allocator_free_total_bytes{rank="10",device="0",at="timer"} 1000
# TYPE gpufrag_allocator_largest_allocatable_bytes gauge
gpufrag_allocator_largest_allocatable_bytes{rank="10",device="0",at="boundary"} 900
gpufrag_allocator_largest_allocatable_bytes{rank="10",device="0",at="timer"} 200
"""


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpufrag", "demo", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_worst_moment_of_each_rank_is_shown() -> None:
    first, second = table.rows(METRICS)
    assert first == table.Row("0", 7, None, None, None, None)
    assert second == table.Row("10", 9, 2048, 1000, 200, None)
    assert second.ratio == 5.0


def test_a_moment_that_is_long_past_does_not_count() -> None:
    taken = """\
# TYPE gpufrag_snapshot_timestamp_seconds gauge
gpufrag_snapshot_timestamp_seconds{rank="10",device="0",at="boundary"} 1000
gpufrag_snapshot_timestamp_seconds{rank="10",device="0",at="timer"} %s
"""
    _, recent = table.rows(METRICS + taken % (1000 - table.OLD_SECONDS))
    _, old = table.rows(METRICS + taken % (999.9 - table.OLD_SECONDS))
    assert (recent.ratio, old.ratio) == (5.0, 1.0)


def test_a_fragmented_rank_is_marked_and_a_missing_figure_is_a_dash() -> None:
    lines = table.lines(table.rows(METRICS))
    assert lines[1].split() == ["0", "7", "-", "-", "-", "-", "-"]
    assert lines[2].endswith("5.00  fragmented")
    assert "\x1b[31m" in table.lines(table.rows(METRICS), colour=True)[2]


def test_no_sidecar_is_told_in_a_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/metrics"
        with pytest.raises(Unavailable, match=r"does not answer \(\[Errno"):
            table.scrape(url)


@pytest.mark.parametrize("name", traces.NAMES)
def test_a_trace_ends_as_the_real_run_did(name: str) -> None:
    trace = traces.load(name)
    assert trace.driver.limit is not None
    assert len(trace.program.operations) > 1000


def test_the_whole_chain_shows_one_healthy_and_one_fragmented_rank() -> None:
    done = demo("--duration", "5", "--play", "1", "--once")
    assert done.returncode == 0, done.stderr
    _, head, healthy, fragmented = done.stdout.splitlines()
    assert head.split()[0] == "rank"
    assert float(healthy.split()[-1]) < 1.5
    assert fragmented.split()[-1] == "fragmented"
    assert done.stderr == ""


def test_a_port_in_use_is_told_and_nothing_stays_behind() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = demo("--duration", "5", "--once", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("gpufrag: the sidecar ended with exit code 1: cannot listen on 127.0.0.1:")
    assert "Address already in use" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--duration", "soon"], "is not a duration"),
        (["--duration", "0"], "--duration is 1 s or more"),
        (["--once"], "say with --duration when that is"),
        (["--port", "-1"], "argument --port: '-1' is not a whole number from 0 to 65535"),
        (["--port", "70000"], "argument --port: '70000' is not a whole number from 0 to 65535"),
    ],
)
def test_a_wrong_call_is_one_line(flags: list[str], told: str) -> None:
    done = demo(*flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "value", "escapes"),
    [("TERM", "xterm", ["\x1b[31m", "\x1b[3F"]), ("TERM", "dumb", []), ("NO_COLOR", "1", ["\x1b[3F"])],
)
def test_a_terminal_is_steered_only_where_it_understands(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, escapes: list[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(table, "scrape", lambda url: METRICS)
    monkeypatch.setattr(demo_command, "_seconds", lambda duration: iter([None, None]))
    demo_command._show(types.SimpleNamespace(url="", require_alive=lambda: None), None, once=False)  # type: ignore[arg-type]
    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert [escape for escape in ("\x1b[31m", "\x1b[3F") if escape in shown] == escapes
    assert escapes or "\x1b" not in shown
