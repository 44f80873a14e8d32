"""`gpufrag whatif`: a recorded trace, replayed under other allocator settings."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BadInput, UsageError
from ..reports.terminal import Progress
from ..units import argument, parse_memory, whole
from ..wire.codec import dumps
from .arguments import memory_limit, refuse_more_free_than_there_is, release

if TYPE_CHECKING:
    from ..model.settings import Settings
    from ..model.trace.comparison import Candidate, Compared
    from ..model.trace.whatif import Run, Start
    from ..snapshot_file.recording import Recording

CANDIDATES = (
    "",  # torch's defaults
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
)


PARALLEL_FROM = 200_000
"""Operations of all settings together; below it, starting processes costs more than it saves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size, limit = argument(parse_memory), argument(memory_limit)
    parser.add_argument(
        "file", metavar="SNAPSHOT", help="snapshot with history (torch.cuda.memory._record_memory_history)"
    )
    parser.usage = "%(prog)s SNAPSHOT [--settings CONF [CONF ...]] [options]"  # CONF takes all that follows it
    parser.add_argument(
        "--settings",
        metavar="CONF",
        nargs="+",
        action="extend",
        help="settings to compare instead of the built-in list; '' for torch's defaults",
    )
    parser.add_argument(
        "--limit", metavar="SIZE", type=limit, help="memory limit to replay with (default: the limit while recording)"
    )
    parser.add_argument(
        "--recorded-limit",
        metavar="SIZE",
        type=limit,
        help="memory limit while recording (default: the one in the file)",
    )
    parser.add_argument(
        "--smallest-limit", action="store_true", help="also find the smallest memory limit for each setting"
    )
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
        "--device", metavar="D", type=argument(whole(0)), help="only this device (default: all, one after the other)"
    )
    parser.add_argument(
        "--torch", metavar="RELEASE", type=argument(release), help="torch release, if the file does not name it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, null if unknown)")


def run(options: argparse.Namespace) -> int:
    from ..reports import terminal, whatif
    from ..snapshot_file.recording import read_recordings

    recordings = read_recordings(options.file, options.device, options.torch)
    devices, broken = _compare_all(recordings, options)
    if options.json:
        print(dumps({"devices": [whatif.as_record(compared) for compared in devices]}, 2))
    else:
        bold = terminal.bold(sys.stdout)
        print("\n\n".join(whatif.as_text(compared, bold) for compared in devices))
    for error in broken:
        print(f"gpufrag: {error}", file=sys.stderr)
    return int(bool(broken))


def _compare_all(recordings: list[Recording], options: argparse.Namespace) -> tuple[list[Compared], list[BadInput]]:
    """Compare each device separately. Raises BadInput if no device can be replayed."""
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
    from ..model.trace.comparison import Compared

    refuse_more_free_than_there_is(options.driver_free, options.driver_size)
    recorded_limit = recording.limit if options.recorded_limit is None else options.recorded_limit
    recorded = _read_run(recording, recorded_limit, options)
    limit = recorded.recorded_limit if options.limit is None else options.limit
    candidates = _play(recorded, recording.conf, limit, options)
    return Compared(recording.device, recorded, candidates, limit, options.smallest_limit, recording.name)


def _read_run(recording: Recording, recorded_limit: int | None, options: argparse.Namespace) -> Run:
    from ..snapshot_file.recording import read_run_of

    driver = recording.before
    if options.driver_free is not None:  # the driver's reading is from the end of the trace
        held = sum(segment.size for segment in recording.end.segments)
        driver = replace(driver, free=options.driver_free + held)
    if options.driver_size is not None:
        driver = replace(driver, size=options.driver_size)
    try:
        return read_run_of(recording, recorded_limit, driver)
    except BadInput as error:
        raise BadInput(f"{recording.name}: device {recording.device}: {error}") from None


class _Choice(NamedTuple):
    """A setting to play; see Candidate."""

    conf: str
    settings: Settings
    start: Start
    recorded: bool = False


class _Work(NamedTuple):
    """Data that worker processes inherit, because the run is too large to send."""

    run: Run
    choices: list[_Choice]
    limit: int | None
    search: bool
    done: Any
    """Shared memory: operations done, by choice."""


def _play(run: Run, own_conf: str, limit: int | None, options: argparse.Namespace) -> list[Candidate]:
    """Replay the recorded setting first, then the candidates; those that are equal in this run only once.

    Of the anchors, only the best is returned.
    """
    from ..model.trace.comparison import best_of
    from ..model.trace.whatif import in_effect

    choices = list(_choices(run, own_conf, limit, options))
    kinds = [(in_effect(run, choice.settings, limit, options.smallest_limit), choice.start) for choice in choices]
    distinct: dict[tuple[Settings, Start], _Choice] = {}
    for kind, choice in zip(kinds, choices):
        distinct.setdefault(kind, choice)
    found = dict(zip(distinct, _play_each(run, list(distinct.values()), limit, options)))
    candidates = [replace(found[kind], **choice._asdict()) for kind, choice in zip(kinds, choices)]
    anchored = [candidate for candidate in candidates if candidate.start.anchor]
    others = [candidate for candidate in candidates if not candidate.start.anchor]
    return [*others, best_of(anchored)] if anchored else others


def _play_each(run: Run, choices: list[_Choice], limit: int | None, options: argparse.Namespace) -> list[Candidate]:
    """Replay each choice; long runs use one process per core."""
    operations = len(run.program.operations)
    context = multiprocessing.get_context("fork")
    work = _Work(run, choices, limit, options.smallest_limit, context.Array("q", len(choices), lock=False))
    cores = min(len(os.sched_getaffinity(0)), len(choices))
    run.prepare()
    with Progress(sys.stderr) as progress:
        progress.start(f"{len(choices)} settings")
        if cores < 2 or operations * len(choices) < PARALLEL_FROM:
            return [_play_one(work, number, progress) for number in range(len(choices))]
        with context.Pool(cores, _inherit, (work,)) as pool:
            found = pool.map_async(_play_in_worker, range(len(choices)), chunksize=1)
            while not found.ready():
                found.wait(0.1)
                progress.show(sum(work.done), _total(work))
            return found.get()


_inherited: list[_Work] = []


def _inherit(work: _Work) -> None:
    _inherited[:] = [work]


def _play_in_worker(number: int) -> Candidate:
    return _play_one(_inherited[0], number)


def _play_one(work: _Work, number: int, progress: Progress | None = None) -> Candidate:
    from ..model.trace.comparison import Candidate
    from ..model.trace.whatif import play, smallest_limit

    run, choice = work.run, work.choices[number]
    operations = len(run.program.operations)

    def show(done: int, total: int, searching: bool = False) -> None:
        work.done[number] = operations * searching + operations * done // max(1, total)
        if progress is not None:
            progress.show(sum(work.done), _total(work))

    limit = work.limit if choice.start.packed else run.recorded_limit
    outcome = play(run, choice.settings, limit, show, choice.start)
    smallest = None
    if work.search:
        known = None if outcome.failed else limit
        progress_of_search = partial(show, searching=True)
        smallest = smallest_limit(run, choice.settings, progress_of_search, known, choice.start)
    work.done[number] = operations * (1 + work.search)
    return Candidate(**choice._asdict(), outcome=outcome, smallest_limit=smallest)


def _total(work: _Work) -> int:
    return len(work.run.program.operations) * len(work.choices) * (1 + work.search)


def _choices(run: Run, own_conf: str, limit: int | None, options: argparse.Namespace) -> Iterator[_Choice]:
    """Yield the recorded setting as recorded, the same with the others' start, and the others."""
    from ..model.settings import parse_conf, without_choices
    from ..model.trace.whatif import EMPTIED, OWN_HEAP, PACKED, Start, possible_anchors

    own = run.end.settings
    if not run.complete:
        yield _Choice(own_conf, own, OWN_HEAP, recorded=True)
    yield _Choice(own_conf, own, PACKED, recorded=True)
    if options.settings is not None:
        choices = {conf: _settings(conf, own.torch) for conf in options.settings}
        yield from (_Choice(conf, settings, PACKED) for conf, settings in choices.items() if settings != own)
        return
    stays = without_choices(own_conf)
    bounded = run.limit_under(own, limit) is not None
    known = [conf for conf in CANDIDATES if bounded or "garbage" not in conf]
    choices = {conf: parse_conf(conf, own.torch) for conf in (",".join(filter(None, (one, stays))) for one in known)}
    yield from (_Choice(conf, settings, PACKED) for conf, settings in choices.items() if settings != own)
    defaults = parse_conf(stays, own.torch)
    # above the limit, the agent does not reserve the anchor; a search also tries larger limits
    most = None if options.smallest_limit else run.limit_under(defaults, limit)
    sizes = [size for size in possible_anchors(run, defaults) if most is None or size <= most]
    yield from (_Choice(stays, defaults, Start(anchor=size)) for size in sizes)
    if not run.complete:
        yield _Choice(own_conf, own, EMPTIED, recorded=True)


def _settings(conf: str, torch: tuple[int, int]) -> Settings:
    """Parse a setting. Raises UsageError for what torch rejects."""
    from ..model.settings import read_conf

    try:
        return read_conf(conf, torch)
    except BadInput as error:
        raise UsageError(f"--settings {conf}: {error}") from None
