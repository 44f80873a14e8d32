"""`gpufrag top`: all ranks of a host in the terminal, from the agents' folder or from a sidecar."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Unavailable, UsageError
from ..units import argument, parse_duration
from ..wire.codec import dumps
from ..wire.folder import to_read
from .arguments import folder_name

if TYPE_CHECKING:
    from ..metrics.scraped import RankRow

Read = Callable[[], "Sequence[RankRow]"]
_pause = time.sleep
SETTLE_S = 5.0
"""The longest wait for the first reading of a folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="the agents' folder, or the address of a sidecar such as http://127.0.0.1:9836 (default: the folder that "
        "the sidecar reads)",
    )
    add("--sort", metavar="COLUMN", default="ratio", help="sort by this column (default: ratio)")
    add("--reverse", action="store_true", help="sort in ascending order")
    add(
        "--filter",
        metavar="CONDITIONS",
        default="",
        help="show only devices that match, such as 'ratio>4, margin<1GiB'",
    )
    add(
        "--interval",
        metavar="DURATION",
        type=argument(parse_duration),
        default=2.0,
        help="time between readings (default: 2s)",
    )
    add("--once", action="store_true", help="print the table once")
    add("--json", action="store_true", help="print the devices once as JSON (sizes in bytes, null if unknown)")
    add("--bearer-file", metavar="FILE", type=Path, help="file with a bearer token for the sidecar")
    add("--ca-file", metavar="FILE", type=Path, help="CA certificates for an https sidecar")


def run(options: argparse.Namespace) -> int:
    from ..reports import top
    from ..reports.terminal import bold

    by, conditions = top.column_named(options.sort), top.parse_filter(options.filter)
    if options.interval < 0.1:
        raise UsageError(f"--interval must be at least 100ms (got {options.interval:g} s)")
    reverse = not options.reverse
    with _reader(options) as read:
        if options.json:
            rows = top.chosen(read(), conditions, by, reverse)
            print(dumps({"devices": [top.as_record(row) for row in rows]}, 2))
            return 0
        if options.once or not sys.stdout.isatty():
            rows = top.chosen(read(), conditions, by, reverse)
            print("\n".join(top.as_lines(rows, bold(sys.stdout))) if rows else "No ranks.")
            return 0
        try:
            from ..reports.top_screen import Top
        except ImportError:  # the extra is not installed
            return _repeat(read, lambda rows: top.as_lines(top.chosen(rows, conditions, by, reverse)), options.interval)
        Top(read, options.interval, by, reverse, conditions).run()
        return 0


def _repeat(read: Read, lines: Callable[[Sequence[RankRow]], list[str]], interval: float) -> int:
    """Print the table again and again on a terminal, until Ctrl-C."""
    while True:
        try:
            text = "\n".join(lines(read()))
        except Unavailable as error:
            text = str(error)
        print(f"\x1b[H\x1b[J{text}\n(pip install 'gpufrag[top]' adds keys to sort and filter)", flush=True)
        _pause(interval)


@contextmanager
def _reader(options: argparse.Namespace) -> Iterator[Read]:
    source: str | None = options.source
    if source is not None and source.startswith(("http://", "https://")):
        yield _scraper(source, options)
        return
    if options.bearer_file or options.ca_file:
        raise UsageError("--bearer-file and --ca-file require the address of a sidecar, such as https://host:9836")
    from .. import metrics
    from ..config.sidecar import AnalysisSettings, FolderSettings
    from ..metrics.scraped import rank_rows
    from ..sidecar.source import FleetSource

    folder = to_read() if source is None else folder_name(source)
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise Unavailable(f"{folder}: {what}; start a job with gpufrag run, or name its folder")
    fleet = FleetSource(folder, FolderSettings(), None, AnalysisSettings())

    def read() -> Sequence[RankRow]:
        _, body = metrics.render(fleet.read(), "", detail=False)
        return rank_rows(body.decode())

    try:
        deadline = time.monotonic() + SETTLE_S
        while fleet.read() and fleet.waiting_for and time.monotonic() < deadline:
            time.sleep(0.05)
        yield read
    finally:
        fleet.close()


def _scraper(address: str, options: argparse.Namespace) -> Read:
    from ..metrics.scraped import rank_rows
    from ..web.client import Client

    client = Client(address, bearer_file=options.bearer_file, ca_file=options.ca_file)
    client.check()

    def read() -> Sequence[RankRow]:
        answer = client.get("/metrics")
        if answer.status != 200:
            hint = "; it requires a token or password" if answer.status in (401, 403) else ""
            raise Unavailable(f"{answer.url} answered with status {answer.status}{hint}")
        return rank_rows(answer.text)

    return read
