"""The sidecar's page: ranks, out-of-memory errors, leaks, sources. JavaScript only refreshes it."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...metrics.places import NamedRank, name_ranks
from ...metrics.view import CollectorResult, Fleet, StepView
from ...model.fragmentation import Fragmentation
from ...model.needs import RECORDED, RECORDED_PACKED, better_setting
from ...reports import oom
from ...units import format_bytes, format_duration
from ...web.html import STYLE, Cell, Column, page_headers, table, template
from ...wire.folder import FileName, ReportName
from ...wire.oom_report import OomReport
from ...wire.sample import DeviceSample, GrowingStack
from ..history import History, key_of, latest_values
from ..procfs import AgentProcess
from ..sample_files import REMEDIES, Skip
from .charts import limit_bars, memory_bar, memory_map, sparkline

FOLDER = Path(__file__).parent
SCRIPT = (FOLDER / "live.js").read_text()
HEADERS = page_headers(SCRIPT)
PLAIN_HEADERS = page_headers()
TRIGGER = 4.0
CLOCK_TOLERANCE_S = 1.0
UNKNOWN = "–"
MAX_OOMS = 20
MAX_LISTED = 5
MAX_MAPS = 8
NO_LINES = "no lines recorded; how to find them: docs/leaks.md"


@dataclass(frozen=True)
class Surroundings:
    """What the page shows in addition to the fleet."""

    folder: Path
    history: History
    agent_processes: Sequence[AgentProcess] = ()
    """Processes with the agent; looked for only if no rank is alive."""
    control: bool = False
    """Whether the sidecar has a control token, which the buttons require."""


def render(fleet: Fleet, around: Surroundings) -> bytes:
    page = template(FOLDER / "index.html").substitute(
        style=STYLE,
        script=SCRIPT,
        version=html.escape(__version__),
        time=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(fleet.time)),
        tiles=_tiles(fleet),
        summary=html.escape(_summary(fleet)),
        folder=html.escape(str(around.folder)),
        control=CONTROL if around.control else "",
        ranks=table(_rank_columns(around), rank_rows(fleet, around), "No ranks. " + no_ranks_hint(around)),
        maps=memory_maps(fleet),
        steps=table(STEP_COLUMNS, step_rows(fleet), "No recorded steps."),
        ooms=table(OOM_COLUMNS, oom_rows(fleet), no_ooms_text(fleet)),
        leaks=table(LEAK_COLUMNS, leak_rows(fleet), "No leaks detected."),
        sources=table(SOURCE_COLUMNS, source_rows(fleet), "No sources."),
    )
    return page.encode()


def render_text(title: str, text: str) -> bytes:
    """Return a page with one text, such as an OOM report."""
    page = template(FOLDER / "text.html").substitute(
        style=STYLE, title=html.escape(title), text=html.escape(text), version=html.escape(__version__)
    )
    return page.encode()


def render_report(report: OomReport) -> bytes:
    return render_text(f"OOM report {report.id}", oom.as_text(report))


def report_name(report: OomReport) -> str:
    """Return the name of the report's file, which is unique in its folder."""
    return ReportName(FileName.of(report.identity), report.number).file


def _tiles(fleet: Fleet) -> str:
    """The most important values, each with the rank that has it."""
    peaks, largest, stranded, ooms = [], [], 0, 0
    for rank, device in _living_devices(fleet):
        where = f"rank {_name(rank)}, device {_device_name(device)}"
        at_peak = latest_values(device, "peak")
        values = latest_values(device)
        if at_peak and at_peak.ratio is not None:
            peaks.append((at_peak.ratio, where))
        if values and values.largest_allocatable is not None:
            largest.append((values.largest_allocatable, where))
        if isinstance(values, Fragmentation):
            stranded += values.stranded
        ooms += _oom_count(device)
    margins = [
        (found, f"rank {_name(rank)}, device {step.device}")
        for rank in name_ranks(fleet.ranks)
        for step in (rank.view.steps if rank.view.alive else ())
        if (found := margin(step)) is not None
    ]
    tiles = []
    if margins:
        size, where = min(margins)
        tiles.append(("Smallest margin", format_bytes(size), where, "bad" if size < 0 else ""))
    if peaks:
        ratio, where = max(peaks)
        tiles.append(("Highest ratio at the peak", f"{ratio:.2f}", where, "bad" if ratio > TRIGGER else ""))
    if largest:
        size, where = min(largest)
        tiles.append(("Largest allocatable, worst rank", format_bytes(size), where, ""))
        tiles.append(("Stranded", format_bytes(stranded), "all ranks", ""))
        tiles.append(("Out-of-memory errors", str(ooms), "since the processes started", "bad" if ooms else ""))
    items = "".join(
        f'<li>{html.escape(name)}<b class="{css}">{html.escape(value)}</b><small>{html.escape(where)}</small></li>\n'
        for name, value, where, css in tiles
    )
    return f'<ul class="tiles">\n{items}</ul>\n' if items else ""


def _living_devices(fleet: Fleet) -> Iterator[tuple[NamedRank, DeviceSample]]:
    for rank in name_ranks(fleet.ranks):
        for device in rank.view.sample.devices if rank.view.alive else ():
            yield rank, device


RANK_COLUMNS = (
    Column("rank"),
    Column("device", "number"),
    Column("state"),
    Column("age", "number"),
    Column("ratio", "number"),
    Column("at the peak", "number"),
    Column("free total", "number"),
    Column("largest allocatable", "number"),
    Column("stranded", "number"),
    Column("reserved / limit", "number"),
    Column("agent overhead", "number"),
)


CONTROL = (
    '<section id="control" hidden>\n<label>Control token <input type="password" id="token" autocomplete="off"></label> '
    '<span id="answer" role="status"></span>\n</section>\n'
)
BUTTONS = (("snapshot", "take snapshot"), ("record", "record 3 steps"), ("explain", "explain 3 steps"))


def _rank_columns(around: Surroundings) -> tuple[Column, ...]:
    return (*RANK_COLUMNS, Column("actions", "action")) if around.control else RANK_COLUMNS


def _buttons(name: FileName) -> str:
    return "".join(
        f'<button type="button" data-action="{action}" data-process="{html.escape(name.stem)}">{text}</button> '
        for action, text in BUTTONS
    )


def rank_rows(fleet: Fleet, around: Surroundings) -> list[list[Cell]]:
    """Return a row per device of each rank; a process without a device has one row too."""
    rows = [(rank, device) for rank in name_ranks(fleet.ranks) for device in (rank.view.sample.devices or (None,))]
    return [
        _rank_row(rank, device, fleet.time, around.history) + ([_action_cell(rank)] if around.control else [])
        for rank, device in rows
    ]


def _action_cell(rank: NamedRank) -> Cell:
    alive = rank.view.alive
    return Cell("" if alive else UNKNOWN, markup=_buttons(FileName.of(rank.view.sample.identity)) if alive else "")


def _rank_row(rank: NamedRank, device: DeviceSample | None, now: float, history: History) -> list[Cell]:
    sample, alive = rank.view.sample, rank.view.alive
    values = latest_values(device) if device and alive else None
    peak = latest_values(device, "peak") if device and alive else None
    heap = values if isinstance(values, Fragmentation) else None
    points = history.points(key_of(rank, device)) if device and alive else ()
    limit = heap.limit if heap else device.limit if device and values else None
    return [
        Cell(_name(rank), "" if alive else "dead"),
        Cell(_device_name(device) if device else UNKNOWN),
        Cell(rank.view.state, "" if alive else "dead"),
        Cell(_age(now - sample.time)),
        _ratio_cell(values.ratio if values else None, sparkline([point.ratio for point in points], TRIGGER)),
        _ratio_cell(peak.ratio if peak else None),
        Cell(_bytes(values.free_total if values else None)),
        Cell(
            _bytes(values.largest_allocatable if values else None),
            markup=sparkline([point.largest_allocatable for point in points]),
        ),
        Cell(_bytes(heap.stranded if heap else None)),
        Cell(
            f"{_bytes(values.reserved if values else None)} / {_bytes(limit)}", markup=memory_bar(heap) if heap else ""
        ),
        Cell(_agent_cost(rank) if alive else UNKNOWN),
    ]


def _ratio_cell(ratio: float | None, markup: str = "") -> Cell:
    if ratio is None:
        return Cell(UNKNOWN, markup=markup)
    return Cell(f"{ratio:.2f}", "bad" if ratio > TRIGGER else "good", markup=markup)


def _name(rank: NamedRank) -> str:
    return ", ".join(value if name == "rank" else f"{name} {value}" for name, value in rank.labels.items())


def _device_name(device: DeviceSample) -> str:
    return f"{device.device} ({device.framework})" if device.framework else str(device.device)


def _age(seconds: float) -> str:
    """A time in the future beyond the tolerance is shown: the clocks differ."""
    if seconds > -CLOCK_TOLERANCE_S:
        return format_duration(max(0.0, seconds))
    return f"ahead by {format_duration(-seconds)}"


def _agent_cost(rank: NamedRank) -> str:
    """The share of the process's time for which the agent held it."""
    sample = rank.view.sample
    lifetime = sample.time - sample.identity.start
    return f"{sum(sample.health.stall_seconds.values()) / lifetime:.3%}" if lifetime > 0 else UNKNOWN


def no_ranks_hint(around: Surroundings) -> str:
    """Say what was found instead of a rank, and what to do."""
    folders = {one.folder for one in around.agent_processes if one.folder}
    elsewhere = sorted(folder for folder in folders if Path(folder) != around.folder)
    if elsewhere:
        shown = ", ".join(elsewhere[:MAX_LISTED])
        return (
            f"Processes with the agent write to another folder ({shown}); this sidecar reads {around.folder}. "
            "Start it with --folder, or give both the same GPUFRAG_DIR."
        )
    if around.agent_processes:
        pids = ", ".join(str(one.pid) for one in around.agent_processes[:MAX_LISTED])
        return (
            f"{len(around.agent_processes)} Python processes have the agent but no CUDA allocator yet (pid {pids}): "
            "they have not used a GPU, or their torch is a CPU build."
        )
    return "Start a job with `gpufrag run -- COMMAND`. Its GPUFRAG_DIR must be the folder above."


def memory_maps(fleet: Fleet) -> str:
    """Return the maps of the devices with most stranded memory, each with a link to the one with all blocks."""
    found = []
    for rank, device in _living_devices(fleet):
        layout, values = rank.view.layouts.get(device.device), latest_values(device)
        if layout and device.framework is None and isinstance(values, Fragmentation):
            found.append((values, rank, device, layout))
    found.sort(key=lambda one: -one[0].stranded)
    items = [
        f"<li>rank {html.escape(_name(rank))}, device {_device_name(device)}: "
        f"{format_bytes(values.stranded)} stranded of {format_bytes(values.reserved)} reserved, "
        f'<a href="{_steps_link(rank)}">all blocks</a>{memory_map(layout)}</li>\n'
        for values, rank, device, layout in found[:MAX_MAPS]
    ]
    if not items:
        return '<p class="empty">No snapshots.</p>\n'
    return f'<ul class="maps">\n{"".join(items)}</ul>\n' + (
        f"<p>{len(found) - MAX_MAPS} more devices have less stranded memory.</p>\n" if len(found) > MAX_MAPS else ""
    )


def _steps_link(rank: NamedRank) -> str:
    return f"steps/{FileName.of(rank.view.sample.identity).recording}"


STEP_COLUMNS = (
    Column("rank"),
    Column("device", "number"),
    Column("age", "number"),
    Column("allocations", "number"),
    Column("peak active", "number"),
    Column("limit", "number"),
    Column("margin", "number"),
    Column("smallest limit"),
    Column("advice", "text"),
    Column("heap"),
)


def step_rows(fleet: Fleet) -> list[list[Cell]]:
    """Return a row per analysed step of each running process."""
    return [
        [
            Cell(_name(rank)),
            Cell(str(step.device)),
            Cell(_age(fleet.time - step.time)),
            Cell(f"{step.allocations:,}"),
            Cell(format_bytes(step.peak_active)),
            Cell(_bytes(step.limit)),
            _margin_cell(step),
            Cell("", markup=limit_bars(step.smallest_limits, step.limit)),
            Cell(_advice(step)),
            Cell("memory map", link=_steps_link(rank)),
        ]
        for rank in name_ranks(fleet.ranks)
        for step in (rank.view.steps if rank.view.alive else ())
    ]


def margin(step: StepView) -> int | None:
    """Return the limit minus the smallest limit of the recorded setting; None if one of them is unknown."""
    needed = step.smallest_limits.get(RECORDED)
    return None if step.limit is None or needed is None else step.limit - needed


def _margin_cell(step: StepView) -> Cell:
    found = margin(step)
    return Cell(UNKNOWN) if found is None else Cell(format_bytes(found), "bad" if found < 0 else "")


def _advice(step: StepView) -> str:
    if RECORDED_PACKED not in step.smallest_limits:
        return UNKNOWN
    better = better_setting(step.smallest_limits)
    if better is None:
        return "keep the setting"
    cost = f": {better.cost}" if better.cost else ""
    return f"{better.name} needs {format_bytes(better.saves)} less{cost}"


OOM_COLUMNS = (
    Column("report"),
    Column("age", "number"),
    Column("rank"),
    Column("device", "number"),
    Column("verdict"),
    Column("requested", "number"),
    Column("why", "text"),
    Column("where"),
)


def oom_rows(fleet: Fleet) -> list[list[Cell]]:
    """Return a row per recent error, of exited processes too."""
    return [_oom_row(report, fleet.time) for report in fleet.ooms[:MAX_OOMS]]


def _oom_row(report: OomReport, now: float) -> list[Cell]:
    who, place = report.identity, report.place
    return [
        Cell(report.id, link=f"oom/{report_name(report)}"),
        Cell(_age(now - report.time)),
        Cell(f"process {who.pid}" if who.rank is None else str(who.rank)),
        Cell(str(report.device)),
        Cell(report.cause),
        Cell(format_bytes(report.requested)),
        Cell(next(iter(report.evidence), UNKNOWN), title=report.next_step),
        Cell(f"{'/'.join(Path(place.file).parts[-2:])}:{place.line}", title=place.file) if place else Cell(UNKNOWN),
    ]


def no_ooms_text(fleet: Fleet) -> str:
    counts = [(_name(rank), _oom_count(device)) for rank, device in _living_devices(fleet)]
    counted = [f"rank {name}: {count}" for name, count in counts if count]
    if not counted:
        return "No recent out-of-memory errors."
    return (
        f"No recent reports. The allocators counted {sum(count for _, count in counts)} out-of-memory errors since the "
        f"processes started ({', '.join(counted[:MAX_LISTED])}), but their reports were deleted or not written."
    )


def _oom_count(device: DeviceSample) -> int:
    source = device.totals or device.sums
    return (source.counters.ooms or 0) if source else 0


LEAK_COLUMNS = (
    Column("rank"),
    Column("device", "number"),
    Column("grows by", "number"),
    Column("seen"),
    Column("where", "text"),
)


def leak_rows(fleet: Fleet) -> list[list[Cell]]:
    """Return a row per device of each running process that leaks."""
    return [
        [
            Cell(_name(rank)),
            Cell(_device_name(device)),
            Cell(
                f"{format_bytes(round(leak.rate))} per {leak.unit}",
                title=f"99 % interval: {format_bytes(round(leak.low))} to {format_bytes(round(leak.high))}",
            ),
            Cell(f"{leak.unit} {leak.begin:.0f} to {leak.end:.0f}"),
            Cell("; ".join(map(_growth, leak.stacks)) or NO_LINES),
        ]
        for rank, device in _living_devices(fleet)
        if (leak := device.leak) is not None and leak.rate > 0
    ]


def _growth(stack: GrowingStack) -> str:
    return f"{format_bytes(stack.grown)} more at {' < '.join(stack.frames) or 'code without a Python stack'}"


SOURCE_COLUMNS = (Column("source"), Column("state"), Column("took", "number"), Column("reason", "text"))


def source_rows(fleet: Fleet) -> list[list[Cell]]:
    rows = [_source_row(name, result) for name, result in sorted(fleet.collectors.items())]
    remedies = {reason.value: f": {remedy}" for reason, remedy in REMEDIES.items()}
    rows += [
        [Cell("files skipped"), Cell("not read"), Cell(UNKNOWN), Cell(f"{count} {reason}{remedies.get(reason, '')}")]
        for reason, count in sorted(fleet.skipped.items())
        if count
    ]
    return rows


def _source_row(name: str, result: CollectorResult) -> list[Cell]:
    took = UNKNOWN if result.duration_seconds is None else format_duration(result.duration_seconds)
    return [Cell(name), Cell("read" if result.success else "not read"), Cell(took), Cell(result.reason or "")]


def _summary(fleet: Fleet) -> str:
    denied = fleet.skipped.get(Skip.DENIED.value)
    counts = [f"{count} {state}" for state, count in fleet.states.items()]
    return ", ".join([*counts, f"{denied} denied"] if denied else counts)


def _bytes(size: int | None) -> str:
    return UNKNOWN if size is None else format_bytes(size)
