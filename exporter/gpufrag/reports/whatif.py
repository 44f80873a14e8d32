"""`gpufrag whatif`: outcomes side by side, the setting to use, and what to know before you use it."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..model.anchor import anchor_size
from ..model.settings import unknown_options
from ..model.trace.comparison import Advice, Candidate, Compared, advise
from ..model.trace.program import AWAIT
from ..model.trace.whatif import Run
from ..units import format_bytes
from .terminal import Emphasis

WIDTH = 118


def notes(compared: Compared) -> Iterator[str]:
    """Yield what is unknown from the trace and could change the answer."""
    run, limit = compared.run, compared.limit
    if run.older:
        yield (
            f"{run.older:,} blocks are older than the trace. The comparison packs them without gaps, so real peaks can "
            "be higher. For exact results, record from the start of the process; if the trace was cut off, raise "
            "max_entries"
        )
    if run.program.strangers:
        yield f"{run.program.strangers:,} frees in the trace have no matching allocation; gpufrag ignores them"
    if limit == run.recorded_limit and not compared.candidates[0].outcome.same_end:
        yield (
            "the replay under the recorded setting does not end in the recorded heap. A difference of a few MiB comes "
            "from libraries that allocate memory from the driver. A larger one means that the snapshot lacks a "
            "setting: if the process had a memory limit, add --recorded-limit"
        )
    yield from doubts(run)
    if run.program.failed:
        yield (
            "requests failed in the recording: if they succeed under another setting, the program can continue "
            "differently than recorded"
        )
    if run.driver.free is None:
        yield "the trace does not show the memory of other processes: add --driver-free and --driver-size to include it"
    if compared.bound is None:
        yield from _unlimited(compared)
    if strange := unknown_options(compared.candidates[0].conf):
        yield f"unknown setting in the recording: {', '.join(strange)}; the replay ignores its effect"
    if any(operation.kind == AWAIT for operation in run.program.operations):
        yield (
            "some blocks became free only when another stream had finished with them. The replay uses the recorded "
            "times; in another run, a request near the limit can cause a flush"
        )


def doubts(run: Run) -> Iterator[str]:
    """Yield what the trace leaves open, with the number of cases."""
    if run.program.doubts:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in run.program.doubts.items())
        yield (
            f"the trace does not always show what the allocator did ({kinds}): the number of retries can be off by "
            f"{run.program.inferred:,}. To record the calls of empty_cache too, use "
            "_record_memory_history(context='all')"
        )
    if run.unclear_segments:
        yield (
            f"{run.unclear_segments:,} segments were released before the snapshot. The trace does not show which of "
            "them belonged to a MemPool or CUDA graph; torch 2.12 and later record the pool of each event"
        )


def _unlimited(compared: Compared) -> Iterator[str]:
    if all(candidate.settings.per_process_memory_fraction == 1 for candidate in compared.candidates):
        yield "without --limit no request fails here, and garbage_collection_threshold does nothing"
    elif compared.run.driver.size is None:
        yield "per_process_memory_fraction does nothing here without --driver-size: it is a share of the device"


def as_record(compared: Compared) -> dict[str, Any]:
    """Return one object of --json: sizes in bytes, None if unknown."""
    advice, run = advise(compared.candidates), compared.run
    return {
        "file": compared.name,
        "device": compared.device,
        "torch": "{}.{}".format(*run.end.settings.torch),
        "limit": compared.bound,
        "operations": len(run.program.operations),
        "older_blocks": run.older,
        "trace_is_complete": run.complete,
        "candidates": [_candidate_record(candidate, compared) for candidate in compared.candidates],
        "advice": {
            "conf": advice.take.conf,
            "anchor": advice.take.start.anchor,
            "change": advice.change,
            "enough": advice.enough,
            "saves_bytes": advice.saves,
            "newly_failed": advice.newly_failed,
            "no_longer_failed": advice.no_longer_failed,
            "risks": advice.risks,
        },
        "notes": list(notes(compared)),
    }


def _candidate_record(candidate: Candidate, compared: Compared) -> dict[str, Any]:
    return {
        "limit": compared.limit_of(candidate),
        "conf": candidate.conf,
        "recorded": candidate.recorded,
        **candidate.start._asdict(),
        **asdict(candidate.outcome),
        "peak_fragmentation": candidate.outcome.peak_fragmentation,
        "smallest_limit": candidate.smallest_limit,
    }


def as_text(compared: Compared, bold: Emphasis = str) -> str:
    """Return the report in WIDTH columns."""
    lines = [bold(_title(compared)), ""]
    lines += _table(compared, bold)
    lines += ["", *_advice_lines(advise(compared.candidates), compared.searched, bold), ""]
    for note in notes(compared):
        lines += wrapped(f"note: {note}")
    return "\n".join(lines).rstrip()


def _title(compared: Compared) -> str:
    release = "torch {}.{}".format(*compared.run.end.settings.torch)
    limit = "no limit" if compared.bound is None else f"limit {format_bytes(compared.bound)}"
    return f"{os.path.basename(compared.name)}, device {compared.device}: {release}, {limit}"


HEADS = (
    ("peak", "reserved"),
    ("peak", "active"),
    ("", "fragm."),
    ("stranded", "at peak"),
    ("", "OOMs"),
    ("new", "OOMs"),
    ("", "retries"),
    ("device", "allocs"),
    ("largest", "possible"),
    ("smallest", "limit"),
)
"""Headings of the figures; the largest possible request is that of the worst moment."""


def _table(compared: Compared, bold: Emphasis) -> Iterator[str]:
    candidates = compared.candidates
    count = len(HEADS) if compared.searched else len(HEADS) - 1
    rows = [_cells(candidate)[:count] for candidate in candidates]
    widths = [max(map(len, column)) for column in zip(*zip(*HEADS[:count]), *rows)]
    names = [_name_lines(candidate, candidates[0]) for candidate in candidates]
    widest = max(len(line) for lines in names for line in lines)
    for name, heads in zip(("", "setting"), zip(*HEADS[:count])):
        yield bold(_line(name.ljust(widest), heads, widths))
    for (*first, last), cells in zip(names, rows):
        yield from first
        yield _line(last.ljust(widest), cells, widths)


def _name_lines(candidate: Candidate, first: Candidate) -> list[str]:
    """Return the setting, one option per line."""
    lines = (candidate.conf or "torch's defaults").replace(",", ",\n  ").split("\n")
    if candidate.recorded:
        emptied = "  recorded, empty_cache" if candidate.start.empties_cache else "  recorded, packed"
        lines.append("  as recorded" if candidate is first else emptied)
    if candidate.start.anchor:
        lines.append(f"  --anchor {anchor_size(candidate.start.anchor)}")
    return lines


def _cells(candidate: Candidate) -> tuple[str, ...]:
    outcome = candidate.outcome
    return (
        format_bytes(outcome.peak_reserved),
        format_bytes(outcome.peak_active),
        f"{outcome.peak_fragmentation:.1%}",
        format_bytes(outcome.stranded_at_peak),
        str(outcome.ooms),
        str(outcome.failed),
        str(outcome.alloc_retries),
        str(outcome.device_allocs),
        _size(outcome.worst_largest_allocatable),
        _size(candidate.smallest_limit),
    )


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def _line(name: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([name, *(cell.rjust(width) for cell, width in zip(cells, widths))]).rstrip()


def _advice_lines(advice: Advice, searched: bool, bold: Emphasis) -> Iterator[str]:
    if advice.change:
        yield bold(_line_to_run(advice.take.conf))
        if advice.take.start.anchor:
            yield bold(f"gpufrag run --anchor {anchor_size(advice.take.start.anchor)} -- CMD")
        if advice.saves is not None:
            yield f"  {_saving(advice.saves)}; no request fails"
        else:
            yield (
                f"  failed requests: {advice.take.outcome.ooms} instead of {advice.recorded.outcome.ooms} "
                f"({advice.no_longer_failed} no longer fail, {advice.newly_failed} newly fail)"
            )
    else:
        yield bold("keep the recorded setting: no other has fewer failed requests or saves 2 % of the peak")
    if not advice.enough:
        what = _needed(advice.take) if searched else "add --smallest-limit to find a sufficient limit"
        yield f"  requests fail under every tested setting: {what}"
    for risk in advice.risks:
        yield from wrapped(f"risk: {risk}", "  ")


def _saving(size: int) -> str:
    return f"{'saves' if size >= 0 else 'costs'} {format_bytes(abs(size))} of peak reserved memory"


def _needed(candidate: Candidate) -> str:
    needs = candidate.smallest_limit
    if needs is None:
        return "no limit up to twice the peak suffices"
    return f"the recommended one needs a limit of {format_bytes(needs)}"


def _line_to_run(conf: str) -> str:
    """Return a shell command, quoted because a list of intervals may contain >."""
    return f"export PYTORCH_CUDA_ALLOC_CONF={shlex.quote(conf)}" if conf else "unset PYTORCH_CUDA_ALLOC_CONF"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the text in lines of WIDTH columns, indented after the first."""
    deeper = indent + "      "
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False)
