"""`gpufrag demo`: two simulated ranks, a real sidecar, and a table of their metrics."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from ..demo import processes, table, traces
from ..demo.processes import ENDINGS
from ..errors import Unavailable, UsageError
from ..reports import terminal
from ..units import parse_duration, whole
from .arguments import option

SHORTEST = 1.0
PATIENCE_SECONDS = 30.0  # for the end of the replay on a busy machine, beyond --duration
PLAY_SECONDS = 8.0  # short enough for `--duration 20s` to show the traces' end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "--duration", "DURATION", "stop after this time, such as 20s (default: at Ctrl-C)", parse_duration)
    parser.add_argument(
        "--once", action="store_true", help="print the table once, at the end, for scripts; needs --duration"
    )
    text = "time until one rank is fragmented, for example 1m (default: 8s)"
    option(parser, "--play", "DURATION", text, parse_duration, default=PLAY_SECONDS)
    text = "address of the sidecar; 0.0.0.0 lets containers and other hosts reach it (default: 127.0.0.1)"
    option(parser, "--host", "ADDRESS", text, default="127.0.0.1")
    option(parser, "--port", "PORT", "port of the sidecar (default: a free one)", whole(0, 65535))
    parser.add_argument("--gpu", action="store_true", help="train a small model on a real GPU instead (needs torch)")


def run(options: argparse.Namespace) -> int:
    if options.duration is None and options.once:
        raise UsageError("--once prints the table at the end: set the end with --duration")
    if options.duration is not None and options.duration < SHORTEST:
        raise UsageError(f"--duration must be at least {SHORTEST:.0f}s")
    for number in ENDINGS:
        signal.signal(number, _end)
    with processes.running(_ranks(options.gpu, options.play), options.host, options.port) as demo:
        print(f"metrics: {demo.url}/metrics   page: {demo.url}/", flush=True)
        _show(demo, options)
    return 0


def _end(signum: int, frame: FrameType | None) -> None:
    """Unwind, so that all processes are stopped; a second signal must not interrupt that."""
    for number in ENDINGS:  # with SIG_IGN, Python prints an error for a signal that has already arrived
        signal.signal(number, lambda number, frame: None)
    raise SystemExit(128 + signum)


def _ranks(gpu: bool, play: float) -> list[list[str]]:
    if gpu:
        return [["-m", "gpufrag.demo.train"]]
    return [["-m", "gpufrag.demo.rank", name, str(play)] for name in traces.NAMES]


def _show(demo: processes.Demo, options: argparse.Namespace) -> None:
    lines: list[str] = []
    explained = False
    replays = not options.gpu and options.play < (options.duration or math.inf)
    for over in _seconds(options.duration):
        demo.require_alive()
        drawn, text = len(lines), table.scrape(demo.url)
        rows = table.rows(text)
        lines = table.lines(rows, colour=terminal.colours(sys.stdout))
        if not options.once and not explained:
            _draw(lines, over=drawn if terminal.understands(sys.stdout) else 0)
        ended = replays and (ends := demo.replays_ended()) is not None and table.shows(text, ends)
        if ended and not (explained or options.once):
            explained = True
            print(f"\n{table.summary(rows)} The replay has ended, and the ranks keep their memory.", flush=True)
            print(f"Open {demo.url}/ for details; press Ctrl-C to stop.", flush=True)
        if over and (ended or not replays):
            break
    if options.once:
        _draw(lines)
    if len(lines) < 2:
        hint = "allow more time with --duration"
        if options.gpu:
            hint += ", and check that torch.cuda.is_available() is True"
        raise Unavailable(f"no rank is on /metrics: {demo.last_errors() or hint}")


def _seconds(duration: float | None) -> Iterator[bool]:
    """Yield once per second whether `duration` seconds have passed, for PATIENCE_SECONDS longer than that."""
    end = math.inf if duration is None else time.monotonic() + duration
    while (left := end - time.monotonic()) > -PATIENCE_SECONDS:
        time.sleep(min(1.0, left) if left > 0 else 1.0)
        yield time.monotonic() >= end


def _draw(lines: Sequence[str], over: int = 0) -> None:
    """Print the table, over the `over` lines of the previous one."""
    up = f"\x1b[{over}F\x1b[J" if over else ""
    print(up + "\n".join(lines), flush=True)
