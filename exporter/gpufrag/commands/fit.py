"""`gpufrag fit`: the smallest memory limit of a recorded job, and the cards it fits on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..model.anchor import anchor_size
from ..reports.terminal import Progress, bold
from ..units import argument, format_bytes, parse_memory, whole
from ..wire.codec import dumps

if TYPE_CHECKING:
    from ..model.fit import Card, Fit
    from ..model.settings import Settings
    from ..model.trace.whatif import Run
    from ..snapshot_file.recording import Recording

CANDIDATES = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size = argument(parse_memory)
    parser.add_argument(
        "file", metavar="SNAPSHOT", help="snapshot with history (torch.cuda.memory._record_memory_history)"
    )
    parser.add_argument(
        "--card",
        metavar="SIZE",
        type=size,
        action="append",
        help="memory size of a card to try, such as 32GiB (default: common cards)",
    )
    parser.add_argument(
        "--other", metavar="SIZE", type=size, default=0, help="memory that other jobs hold on the card (default: 0)"
    )
    parser.add_argument(
        "--context",
        metavar="SIZE",
        type=size,
        default="600MiB",
        help="memory that the driver and the CUDA context use (default: 600MiB)",
    )
    parser.add_argument("--device", metavar="D", type=argument(whole(0)), help="only this device")
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, null if it does not fit)")


def run(options: argparse.Namespace) -> int:
    from ..model.fit import CARDS, Card
    from ..model.trace.whatif import on_any_device
    from ..snapshot_file.recording import read_recordings

    cards = [Card(format_bytes(size), size) for size in options.card] if options.card else list(CARDS)
    records = []
    texts = []
    for recording in read_recordings(options.file, options.device):
        recorded = on_any_device(_read_run(recording))
        fits, failed = _fit(recording, recorded, cards, options.context + options.other), recorded.program.failed
        records.append({"device": recording.device, "failed_requests": failed, "fits": [_record(fit) for fit in fits]})
        texts.append("\n".join(_lines(recording, fits, cards, failed)))
    if options.json:
        print(dumps({"file": options.file, "devices": records}, 2))
    else:
        print("\n\n".join(texts))
    return 0


def _read_run(recording: Recording) -> Run:
    from ..model.trace.whatif import read_run

    try:
        return read_run(recording.events, recording.end, recording.before, recording.limit)
    except BadInput as error:
        raise BadInput(f"{recording.name}: device {recording.device}: {error}") from None


def _fit(recording: Recording, recorded: Run, cards: Sequence[Card], taken: int) -> list[Fit]:
    from ..model.fit import fit

    settings = _settings(recording, recorded)
    with Progress(sys.stderr) as progress:
        numbers = count()

        def show(conf: str) -> None:
            progress.start(f"smallest limit with {_setting(conf)}")
            progress.show(next(numbers), len(settings) + 1 + 2 * (not recorded.complete))

        return fit(recorded, settings, cards, taken, show)


def _settings(recording: Recording, recorded: Run) -> dict[str, Settings]:
    from ..model.settings import parse_conf

    own = recorded.end.settings
    others = {conf: parse_conf(conf, own.torch) for conf in CANDIDATES}
    return {recording.conf: own} | {conf: other for conf, other in others.items() if other != own}


def _record(one: Fit) -> dict[str, Any]:
    """Return one object of --json."""
    record = asdict(one)
    return {"conf": record.pop("conf"), **record.pop("start")._asdict(), **record}


def _lines(recording: Recording, fits: Sequence[Fit], cards: Sequence[Card], failed: int) -> Iterator[str]:
    emphasis = bold(sys.stdout)
    recorded, packed = fits[0], next(one for one in fits if one.packed)
    needed = _size(recorded.smallest_limit)
    yield emphasis(f"{recording.name}: device {recording.device}: needs {needed} with its own settings")
    best = min((one for one in fits if one.packed), key=lambda one: (one.smallest_limit is None, one.smallest_limit))
    if best.smallest_limit is not None and _is_worthwhile(best.smallest_limit, packed.smallest_limit):
        instead = "" if recorded.packed else f", compared with {_size(packed.smallest_limit)} (recorded, packed)"
        yield f"needs only {_size(best.smallest_limit)} with {_name(best)}{instead}"
    yield ""
    marks = {id(packed): " (recorded, packed)", id(recorded): " (recorded)"}
    names = [f"{_name(one)}{marks.get(id(one), '')}" for one in fits]
    head = ["", "needs", *(card.name for card in cards)]
    rows = [[name, _needed(one), *(_cell(one, card) for card in cards)] for name, one in zip(names, fits)]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()
    yield ""
    yield "fits: each request that succeeded in the recording succeeds. Numbers in brackets: how often the allocator"
    yield "flushes its cache, which costs time."
    if failed:
        yield f"Requests that failed in the recording: {failed:,}. They are not counted, so the job may need more."
    if not recorded.packed:
        yield "The recorded setting starts from its own heap. The other lines assume that older blocks lie without"
        yield "gaps: compare them with (recorded, packed). Only the line with empty_cache starts from its own heap too:"
        yield "compare it with (recorded). Each call of empty_cache costs time, because it waits for the GPU."
    if any(one.start.anchor for one in fits):
        yield "--anchor is an option of gpufrag run. No other process can use the memory of the anchor."


def _is_worthwhile(limit: int, own: int | None) -> bool:
    """Return whether a limit is worth a change of the settings, by the rule of `gpufrag whatif`."""
    from ..model.trace.comparison import saves_enough

    return own is None or saves_enough(limit, own)


def _name(one: Fit) -> str:
    name = _setting(one.conf)
    if one.start.anchor:
        return f"{name}, --anchor {anchor_size(one.start.anchor)}"
    return f"{name} (recorded, empty_cache)" if one.start.empties_cache else name


def _setting(conf: str) -> str:
    return conf or "torch's defaults"


def _needed(one: Fit) -> str:
    return f"{_size(one.smallest_limit)} ({one.flushes_at_smallest})"


def _cell(one: Fit, card: Card) -> str:
    flushes = one.flushes[card.name]
    return "no" if flushes is None else f"fits ({flushes})" if flushes else "fits"


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)
