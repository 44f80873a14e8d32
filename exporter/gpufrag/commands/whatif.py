"""`gpufrag whatif`: a recorded trace, replayed under other allocator settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BadInput, UsageError
from ..reports.progress import Progress
from ..units import argument, parse_bytes, whole

if TYPE_CHECKING:
    from ..model.settings import Settings
    from ..model.whatif import Run
    from ..reports.whatif import Candidate, Compared
    from ..snapshot_file import Recording

CANDIDATES = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size = argument(parse_bytes)
    parser.add_argument("file", metavar="SNAPSHOT", help="a snapshot with history (_record_memory_history, _snapshot)")
    parser.add_argument("--settings", metavar="CONF", nargs="+", action="extend", help="candidates to try instead")
    parser.add_argument("--limit", metavar="SIZE", type=size, help="memory that the process may reserve")
    parser.add_argument("--recorded-limit", metavar="SIZE", type=size, help="the limit while it was recorded")
    parser.add_argument("--smallest-limit", action="store_true", help="search the smallest limit for each setting")
    parser.add_argument("--driver-free", metavar="SIZE", type=size, help="free memory of the device at the snapshot")
    parser.add_argument("--driver-size", metavar="SIZE", type=size, help="memory of the device")
    parser.add_argument(
        "--device",
        metavar="D",
        type=argument(whole(0)),
        help="one device of a snapshot of several; without it all, one after the other",
    )
    parser.add_argument("--json", action="store_true", help="for programs: bytes, null for what cannot be told")


def run(options: argparse.Namespace) -> int:
    from ..reports import style, whatif
    from ..snapshot_file import read_recordings

    recordings = read_recordings(options.file, options.device)
    devices, broken = _compare_all(recordings, options)
    if options.json:
        print(json.dumps({"devices": [whatif.as_record(compared) for compared in devices]}, indent=2))
    else:
        bold = style.bold(sys.stdout)
        print("\n\n".join(whatif.as_text(compared, bold, alone=len(recordings) == 1) for compared in devices))
    for error in broken:  # the others are told all the same
        print(f"gpufrag: {error}", file=sys.stderr)
    return int(bool(broken))


def _compare_all(recordings: list[Recording], options: argparse.Namespace) -> tuple[list[Compared], list[BadInput]]:
    """Each device by itself. Raises BadInput where none can be replayed."""
    devices, broken = [], []
    for recording in recordings:
        try:
            devices.append(_compare(recording, options))
        except BadInput as error:
            broken.append(error)
    if not devices:
        raise broken[0]
    return devices, broken


def _compare(recording: Recording, options: argparse.Namespace) -> Compared:
    from ..reports.whatif import Compared

    recorded_limit = recording.limit if options.recorded_limit is None else options.recorded_limit
    limit = recorded_limit if options.limit is None else options.limit
    recorded = _read_run(recording, recorded_limit, options)
    candidates = list(_play(recorded, recording.conf, limit, options))
    return Compared(recording.device, recorded, candidates, limit)


def _read_run(recording: Recording, recorded_limit: int | None, options: argparse.Namespace) -> Run:
    from ..model.whatif import read_run

    driver = recording.before
    if options.driver_free is not None:  # at the end: what the process holds then was still free when it began
        held = sum(segment.size for segment in recording.end.segments)
        driver = replace(driver, free=options.driver_free + held)
    if options.driver_size is not None:
        driver = replace(driver, size=options.driver_size)
    try:
        return read_run(recording.events, recording.end, driver, recorded_limit)
    except BadInput as error:
        raise BadInput(f"{recording.name}: device {recording.device}: {error}") from None


def _play(recorded: Run, own_conf: str, limit: int | None, options: argparse.Namespace) -> Iterator[Candidate]:
    """The recorded setting first, then the candidates."""
    from ..model.whatif import play, smallest_limit
    from ..reports.whatif import Candidate

    own = recorded.end.settings
    confs = options.settings or [conf for conf in CANDIDATES if limit is not None or "garbage" not in conf]
    others = [(conf, _settings(conf)) for conf in dict.fromkeys(confs)]
    todo = [(own_conf, own), *((conf, settings) for conf, settings in others if settings != own)]
    with Progress(sys.stderr) as progress:
        for number, (conf, settings) in enumerate(todo, 1):
            progress.start(f"{number} of {len(todo)}: {conf or 'torch defaults'}")
            outcome = play(recorded, settings, limit, progress.show)
            progress.start(f"{number} of {len(todo)}: {conf or 'torch defaults'}, smallest limit")
            enough = 2 * outcome.peak_reserved
            smallest = smallest_limit(recorded, settings, enough, progress.show) if options.smallest_limit else None
            yield Candidate(conf, settings, outcome, recorded=number == 1, smallest_limit=smallest)


def _settings(conf: str) -> Settings:
    """Raises UsageError for what torch would not take."""
    from ..model.settings import parse_conf, refuse_unknown_keys

    try:
        refuse_unknown_keys(conf)
        return parse_conf(conf)
    except BadInput as error:
        raise UsageError(f"--settings {conf}: {error}") from None
