"""`gpufrag explain`: what pins the memory of a saved snapshot, and what to change."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, Unavailable, UsageError, one_line
from ..units import argument, format_bytes, parse_memory, whole
from .arguments import memory_limit, refuse_more_free_than_there_is

if TYPE_CHECKING:
    from ..model.trace.whatif import Outcome
    from ..reports.explain import Explained, Tried

CANDIDATES = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4")
FILES = {
    "--html": "a report with charts and a memory map to this file",
    "--speedscope": "live and stranded memory by stack to this file, for speedscope",
    "--perfetto": "the trace to this file, for Perfetto or chrome://tracing",
}
MOST_EVENTS = 1_000_000
"""Events of a trace up to which settings are replayed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{parser.description}. The output begins with a verdict: fine (no change needed), tune (a setting or a change "
        "of the code can save memory) or act (much memory is lost, or the next request can fail)."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="snapshot (torch.cuda.memory._dump_snapshot), OOM report, or recorded trace in JSON",
    )
    add_device_arguments(parser)
    parser.add_argument("--no-whatif", action="store_true", help="do not replay the trace under other settings")


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    size = argument(parse_memory)
    parser.add_argument(
        "--driver-free",
        metavar="SIZE",
        type=size,
        help="free memory of the device at the snapshot; the first value of torch.cuda.mem_get_info()",
    )
    parser.add_argument(
        "--driver-size",
        metavar="SIZE",
        type=size,
        help="size of the device; the second value of torch.cuda.mem_get_info()",
    )
    parser.add_argument(
        "--limit",
        metavar="SIZE",
        type=argument(memory_limit),
        help="memory limit of the process (default: the device's size)",
    )
    parser.add_argument(
        "--other", metavar="SIZE", type=size, help="memory of other processes on the device (nvidia-smi)"
    )
    parser.add_argument("--device", metavar="D", type=argument(whole(0)), help="only this device")
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, null if unknown)")
    for flag, purpose in FILES.items():
        parser.add_argument(flag, metavar="OUT", type=Path, help=f"also write {purpose}")


def run(options: argparse.Namespace) -> int:
    from ..reports import explain as report
    from ..reports import terminal
    from ..snapshot_file import name_of

    name, raw = name_of(options.file), read(options.file)
    if isinstance(raw, Mapping) and {"schema", "identity", "cause"} <= raw.keys():
        if flag := next((flag for flag in FILES if getattr(options, flag[2:]) is not None), None):
            raise UsageError(f"{flag} requires a snapshot; an OOM report has no heap")
        return _explain_oom(raw, options)
    explained = [_with_settings(each, options) for each in profiles(raw, name, options)]
    write_files(explained, raw, options)
    if options.json:
        from ..wire.codec import dumps

        print(dumps({"file": name, "devices": [report.as_record(each) for each in explained]}, 2))
    else:
        bold = terminal.bold(sys.stdout)
        several = len(explained) > 1
        texts = [report.as_text(each, name, bold, several) for each in report.worst_first(explained)]
        print("\n\n".join(texts) or f"{name}: no memory is reserved, so there is nothing to explain.")
    return 0


def read(source: str) -> Any:
    """Return what a file holds, with the trace in columns. Raises BadInput, Unavailable, UsageError."""
    from ..reports.terminal import Progress
    from ..snapshot_file import load

    with Progress(sys.stderr) as progress:
        progress.start("file")
        return load(source, rows=True, progress=progress.show)


def profiles(raw: Any, name: str, options: argparse.Namespace) -> list[Explained]:
    """Profile each device of a snapshot. Raises BadInput, UsageError."""
    from ..reports import explain as report
    from ..reports import terminal
    from ..snapshot_file.profile import read_profiles
    from ..snapshot_file.reading import without_gc

    refuse_more_free_than_there_is(options.driver_free, options.driver_size)
    given = {"free": options.driver_free, "size": options.driver_size, "limit": options.limit}
    known = {key: value for key, value in given.items() if value is not None}
    try:
        with without_gc(), terminal.Progress(sys.stderr) as progress:
            progress.start("trace")
            found = read_profiles(raw, known, options.device, progress.show, options.other)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    return [report.Explained(*each) for each in found]


def write_files(explained: Sequence[Explained], raw: Any, options: argparse.Namespace) -> None:
    """Write the files that --html, --speedscope and --perfetto name. Raises BadInput, UsageError, Unavailable."""
    from ..snapshot_file import name_of

    name = name_of(options.file)
    if options.html:
        from ..reports import html
        from ..reports.terminal import Progress

        with Progress(sys.stderr) as progress:
            progress.start("report")
            data = html.render(explained, name, progress.show)
        write_beside("--html", options.html, data, options.file)
    if options.speedscope or options.perfetto:
        from ..reports import exports
        from ..snapshot_file.recording import HOW
    if options.speedscope:
        data = _json(exports.speedscope(explained, raw, name))
        write_beside("--speedscope", options.speedscope, data, options.file)
    if options.perfetto:
        if not any(each.events for each in explained):
            raise BadInput(f"{name}: has no history for --perfetto; {HOW}")
        write_beside("--perfetto", options.perfetto, _json(exports.perfetto(explained, name)), options.file)


def _json(record: Any) -> bytes:
    from ..wire.codec import dumps

    return dumps(record).encode()


def write_beside(flag: str, target: Path, data: bytes, *sources: str) -> None:
    """Write the file that `flag` names, and print its size. Raises UsageError if it is a source, Unavailable."""
    from ..wire.folder import write_file

    if target.exists() and any(os.path.exists(source) and os.path.samefile(target, source) for source in sources):
        raise UsageError(f"{flag} {target} would overwrite the snapshot; choose another file")
    try:
        write_file(target, data)
    except OSError as error:
        raise Unavailable(f"cannot write {target}: {error.strerror}; choose another file with {flag}") from None
    print(f"{target}: {format_bytes(len(data))}", file=sys.stderr)


def _explain_oom(raw: Mapping[str, Any], options: argparse.Namespace) -> int:
    from ..reports import oom, terminal
    from ..wire.oom_report import decode

    report = decode(_json(raw))
    if options.json:
        from ..wire.codec import dumps

        print(dumps(oom.whole_record(report), 2))
    else:
        bold = terminal.bold(sys.stdout)
        print(bold(one_line(f"act: {report.next_step}")) + "\n\n" + oom.as_text(report, bold))
    return 0


def _with_settings(explained: Explained, options: argparse.Namespace) -> Explained:
    """Replay the trace under other settings, unless it is too long."""
    events, end = explained.events, explained.end
    if not events:
        return explained
    if options.no_whatif:
        return replace(explained, untried="--no-whatif was given")
    if len(events) > MOST_EVENTS:
        why = f"the trace has more than {MOST_EVENTS:,} events; `gpufrag whatif` replays longer ones"
        return replace(explained, untried=why)
    from ..model.anchor import anchor_name
    from ..model.settings import parse_conf
    from ..model.trace.whatif import PACKED, Start, play, possible_anchors, read_run
    from ..reports.terminal import Progress

    profile = explained.profile
    driver = profile.driver
    if driver.free is not None:  # before the process's first allocation
        driver = replace(driver, free=driver.free + profile.worst.reserved)
    try:
        replayed = read_run(list(events), end, driver, driver.limit)
    except BadInput as error:  # a trace with gaps can be profiled, but not replayed
        return replace(explained, untried=str(error))
    tried, anchored = [], []
    with Progress(sys.stderr) as progress:
        progress.start("recorded setting")
        before = play(replayed, end.settings, driver.limit, progress.show, PACKED)
        for conf in CANDIDATES:
            settings = parse_conf(conf, end.settings.torch)
            if settings == end.settings:
                continue
            progress.start(conf or "torch's defaults")
            after = play(replayed, settings, driver.limit, progress.show, PACKED)
            tried.append(_tried(conf, before, after))
        defaults = parse_conf("", end.settings.torch)
        for size in possible_anchors(replayed, defaults):
            progress.start(anchor_name(size))
            after = play(replayed, defaults, driver.limit, progress.show, Start(anchor=size))
            anchored.append(_tried("", before, after, size))
    if anchored:
        tried.append(min(anchored, key=lambda one: (one.failed, one.peak)))
    return replace(explained, tried=tried)


def _tried(conf: str, before: Outcome, after: Outcome, anchor: int = 0) -> Tried:
    from ..reports.explain import Tried

    saves = before.peak_reserved - after.peak_reserved
    return Tried(conf, after.peak_reserved, saves, before.ooms, after.ooms, anchor)
