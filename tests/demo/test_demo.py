"""The demo: recorded traces, the real agent, a real sidecar and /metrics."""

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
from gpufrag.units import format_bytes

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


def run_demo(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpufrag", "demo", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_table_shows_worst_moment_of_each_rank():
    first, second = table.rows(METRICS)
    assert first == table.Row("0", 7, None, None, None, None)
    assert second == table.Row("10", 9, 2048, 1000, 200, None)
    assert second.ratio == 5.0


def test_table_ignores_old_snapshots():
    taken = """\
# TYPE gpufrag_snapshot_timestamp_seconds gauge
gpufrag_snapshot_timestamp_seconds{rank="10",device="0",at="boundary"} 1000
gpufrag_snapshot_timestamp_seconds{rank="10",device="0",at="timer"} %s
"""
    _, recent = table.rows(METRICS + taken % (1000 - table.OLD_SECONDS))
    _, old = table.rows(METRICS + taken % (999.9 - table.OLD_SECONDS))
    assert (recent.ratio, old.ratio) == (5.0, 1.0)


def test_table_marks_fragmented_rank_and_missing_figures():
    lines = table.lines(table.rows(METRICS))
    assert lines[1].split() == ["0", "7", "-", "-", "-", "-", "-"]
    assert lines[2].endswith("5.00  fragmented")
    assert "\x1b[31m" in table.lines(table.rows(METRICS), colour=True)[2]


def test_summary_names_the_worst_rank():
    free = format_bytes(1000)
    expected = f"Rank 10 is fragmented: {free} is free, but a request above 200 B fails."
    assert table.summary(table.rows(METRICS)) == expected
    assert table.summary([]) == "No rank is fragmented."


def test_missing_sidecar_is_an_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Unavailable, match="cannot reach"):
            table.scrape(url)


@pytest.mark.parametrize("name", traces.NAMES)
def test_trace_can_be_loaded(name):
    trace = traces.load(name)
    assert trace.driver.limit is not None
    assert len(trace.program.operations) > 1000


def test_demo_shows_one_healthy_and_one_fragmented_rank():
    done = run_demo("--duration", "5", "--play", "1", "--once")
    assert done.returncode == 0, done.stderr
    _, head, healthy, fragmented = done.stdout.splitlines()
    assert head.split()[0] == "rank"
    assert float(healthy.split()[-1]) < 1.5
    assert fragmented.split()[-1] == "fragmented"
    assert done.stderr == ""


def test_demo_explains_the_result_after_the_replay():
    done = run_demo("--duration", "6", "--play", "1", "--host", "0.0.0.0")
    assert done.returncode == 0, done.stderr
    *_, result, closing = done.stdout.splitlines()
    assert result.startswith("Rank 1 is fragmented: ")
    assert closing.endswith("press Ctrl-C to stop.")


def test_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_demo("--duration", "5", "--once", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("gpufrag: the sidecar exited with code 1: cannot listen on 127.0.0.1:")
    assert "ddress already in use" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--duration", "soon"], "is not a duration"),
        (["--duration", "0"], "--duration must be at least 1s"),
        (["--once"], "set the end with --duration"),
        (["--port", "-1"], "argument --port: '-1' is not a whole number from 0 to 65535"),
        (["--port", "70000"], "argument --port: '70000' is not a whole number from 0 to 65535"),
    ],
)
def test_wrong_argument_is_one_line(flags, text):
    done = run_demo(*flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert text in done.stderr


ENDED = """\
# TYPE gpufrag_snapshot_timestamp_seconds gauge
gpufrag_snapshot_timestamp_seconds{rank="0",device="0",at="boundary"} 1000
gpufrag_snapshot_timestamp_seconds{rank="10",device="0",at="timer"} %s
"""


@pytest.mark.parametrize("once", [True, False])
def test_result_waits_for_the_snapshot_after_the_replay(monkeypatch, capsys, once):
    scrapes = iter([METRICS, METRICS + ENDED % 999, METRICS + ENDED % 1000])
    ends = iter([None, {"0": 1000.0, "10": 1000.0}, {"0": 1000.0, "10": 1000.0}])
    monkeypatch.setattr(table, "scrape", lambda url: next(scrapes))
    monkeypatch.setattr(demo_command, "_seconds", lambda duration: iter([True] * 9))
    options = types.SimpleNamespace(duration=2, once=once, gpu=False, play=1)
    demo = types.SimpleNamespace(url="", require_alive=lambda: None, replays_ended=lambda: next(ends))
    demo_command._show(demo, options)
    assert list(scrapes) == []
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("Rank 10 is fragmented") for line in lines].count(True) == (not once)


def test_demo_shorter_than_its_replay_ends_in_time(monkeypatch):
    monkeypatch.setattr(table, "scrape", lambda url: METRICS)
    seconds = iter([False, True, True])
    monkeypatch.setattr(demo_command, "_seconds", lambda duration: seconds)
    demo = types.SimpleNamespace(url="", require_alive=lambda: None)
    demo_command._show(demo, types.SimpleNamespace(duration=2, once=True, gpu=False, play=8))
    assert list(seconds) == [True]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "value", "escapes"),
    [("TERM", "xterm", ["\x1b[31m", "\x1b[3F"]), ("TERM", "dumb", []), ("NO_COLOR", "1", ["\x1b[3F"])],
)
def test_escape_sequences_only_on_terminals_that_support_them(monkeypatch, name, value, escapes):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(table, "scrape", lambda url: METRICS)
    monkeypatch.setattr(demo_command, "_seconds", lambda duration: iter([False, True]))
    options = types.SimpleNamespace(duration=None, once=False, gpu=False, play=60)
    demo = types.SimpleNamespace(url="", require_alive=lambda: None, replays_ended=lambda: None)
    demo_command._show(demo, options)  # type: ignore[arg-type]
    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert [escape for escape in ("\x1b[31m", "\x1b[3F") if escape in shown] == escapes
    assert escapes or "\x1b" not in shown
