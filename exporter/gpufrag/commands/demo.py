"""`gpufrag demo`: two ranks, their sidecar, and a table of what /metrics says."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from ..demo import fleet, table, traces
from ..demo.process import ENDINGS
from ..errors import Unavailable, UsageError
from ..reports import terminal
from ..units import argument, parse_duration, whole

SHORTEST = 1.0
PLAY_SECONDS = 8.0  # short enough for `--duration 20` to show the traces' end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--duration", type=argument(parse_duration), help="end after this long (default: at Ctrl-C)")
    parser.add_argument("--once", action="store_true", help="print the table once, at the end, for scripts")
    parser.add_argument("--play", type=argument(parse_duration), default=PLAY_SECONDS, help="how long the traces take")
    parser.add_argument("--port", type=argument(whole(0, 65535)), help="the sidecar's port (default: a free one)")
    parser.add_argument("--gpu", action="store_true", help="train a small model on a real GPU instead (needs torch)")


def run(options: argparse.Namespace) -> int:
    if options.duration is None and options.once:
        raise UsageError("--once prints the table at the end: say with --duration when that is")
    if options.duration is not None and options.duration < SHORTEST:
        raise UsageError(f"--duration is {SHORTEST:.0f} s or more: the table is drawn once a second")
    for number in ENDINGS:
        signal.signal(number, _end)
    with fleet.running(_ranks(options.gpu, options.play), options.port) as demo:
        print(f"metrics: {demo.url}/metrics   ranks: {demo.url}/", flush=True)
        _show(demo, options.duration, options.once)
    return 0


def _end(signum: int, frame: FrameType | None) -> None:
    """Unwinds, so that the ranks and the sidecar are ended too; a second signal must not cut that short."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + signum)


def _ranks(gpu: bool, play: float) -> list[list[str]]:
    if gpu:
        return [["-m", "gpufrag.demo.train"]]
    return [["-m", "gpufrag.demo.rank", name, str(play)] for name in traces.NAMES]


def _show(demo: fleet.Fleet, duration: float | None, once: bool) -> None:
    lines: list[str] = []
    for _ in _seconds(duration):
        demo.require_alive()
        drawn = len(lines)
        lines = table.lines(table.rows(table.scrape(f"{demo.url}/metrics")), colour=terminal.colours(sys.stdout))
        if not once:
            _draw(lines, over=drawn if terminal.understands(sys.stdout) else 0)
    if once:
        _draw(lines)
    if len(lines) < 2:
        said = demo.last_words()
        raise Unavailable(f"no rank was seen on /metrics: {said or 'give it more time with --duration'}")


def _seconds(duration: float | None) -> Iterator[None]:
    """Once a second until `duration` seconds have passed, and at its end."""
    end = math.inf if duration is None else time.monotonic() + duration
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(1.0, left))
        yield


def _draw(lines: Sequence[str], over: int = 0) -> None:
    """Print the table, over the `over` lines of the one before."""
    up = f"\x1b[{over}F\x1b[J" if over else ""
    print(up + "\n".join(lines), flush=True)
