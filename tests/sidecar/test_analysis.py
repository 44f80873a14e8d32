"""Step recordings in the folder, analysed by a worker process within its share of the processor."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput, NewerVersion
from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import Heap, parse
from gpufrag.model.step import StepEvents
from gpufrag.sidecar import analysis
from gpufrag.sidecar.analysis import (
    ANALYSE,
    ANALYSED,
    FAILED,
    INCONSISTENT,
    MEASURE,
    SKIPPED,
    TIMED_OUT,
    Analyzer,
    RankFigures,
    _Process,
    analyse,
    answer,
    cgroup_room,
    measured,
)
from gpufrag.wire.folder import FileName
from gpufrag.wire.recording import MAGIC, DeviceRecording, Recording, decode, encode
from helpers import TESTS

RANK = FileName("host", 4711, 1000)
OTHER = FileName("host", 4712, 1000)
GIB = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="session")
def recorded() -> bytes:
    """A step that allocates 20 MiB next to a live block of 12 MiB, and frees it."""
    base, mib = 1 << 40, 1 << 20
    blocks = [(base, 12 * mib, "active_allocated"), (base + 12 * mib, 28 * mib, "inactive")]
    rows = [{"address": at, "size": size, "requested_size": size, "state": state} for at, size, state in blocks]
    segment = {"device": 0, "address": base, "total_size": 40 * mib, "stream": 0, "segment_type": "large"}
    events = StepEvents(["alloc", "free_requested", "free_completed"], [base + 12 * mib] * 3, [20 * mib] * 3, [0] * 3)
    one = DeviceRecording(0, parse([segment | {"blocks": rows}]), events, Driver(100 * GIB, 141 * GIB, 20 * GIB))
    return encode(Recording(50.0, 0.5, "2.11.0", (one,)))


def test_real_step_is_analysed() -> None:
    raw = json.loads(gzip.decompress((TESTS / "fixtures/steps/gpt2-exp-1.json.gz").read_bytes()))
    driver = Driver(100 * GIB, 141 * GIB, 20 * GIB)
    one = DeviceRecording(0, parse(raw["snapshot"]), StepEvents(**raw["events"]), driver)
    (step,) = analyse(encode(Recording(50.0, 0.5, "2.11.0", (one,))))
    assert (step.device, step.time, step.seconds, step.limit) == (0, 50.0, 0.5, 20 * GIB)
    assert step.peak_active == raw["true_peak"]
    assert step.smallest_limits["recorded"] > step.smallest_limits["expandable_segments"], "from its own heap"


NUMBERS = st.sampled_from([0, 1, 2, 512, 1 << 20, 10 << 20, 20 << 20, 1 << 40, (1 << 64) - 1, 0.5, 1.0, 1e18])
VALUES = NUMBERS | st.lists(NUMBERS, max_size=16) | st.sampled_from([None, True, "boundary", "peak", ""])


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*place, key)
        yield from places(item, (*place, key))


@given(st.data(), st.booleans())
def test_no_header_raises_anything_but_bad_input(recorded: bytes, data: st.DataObject, expandable: bool) -> None:
    start = len(MAGIC) + 8
    end = start + int.from_bytes(recorded[len(MAGIC) : start], "little")
    header = json.loads(recorded[start:end])
    header["devices"][0]["settings"]["expandable_segments"] = expandable
    for *way, last in data.draw(st.lists(st.sampled_from(list(places(header))), min_size=1, max_size=2)):
        inside = header
        with suppress(LookupError, TypeError):  # the first change may have removed it
            for key in way:
                inside = inside[key]
            inside[last] = data.draw(VALUES)
    text = json.dumps(header).encode()
    changed = b"".join([MAGIC, len(text).to_bytes(8, "little"), text, recorded[end:]])
    for work in (measured, analyse):
        with suppress(BadInput, NewerVersion):
            work(changed)


def test_events_of_another_heap_are_an_error_and_the_worker_goes_on(recorded: bytes) -> None:
    def fail(data: bytes) -> None:
        raise KeyError("block")

    answered = answer(recorded, fail)  # type: ignore[arg-type]
    assert answered.error == "its events or its heap are inconsistent (KeyError: 'block')"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def analyzer(tmp_path: Path, clock: Clock) -> Iterator[Analyzer]:
    analyzer = Analyzer(tmp_path, cpu_share=0.02, timeout=60.0, clock=clock)
    yield analyzer
    analyzer.close()


def until(analyzer: Analyzer, condition: Callable[[], bool], *names: FileName) -> None:
    """Look until the condition holds; the test's own timeout bounds it."""
    pause = threading.Event()
    while not condition():
        analyzer.look(names)
        pause.wait(0.02)


def write(folder: Path, name: FileName, data: bytes, time_ns: int = 10**9, file: str | None = None) -> None:
    path = folder / (file or name.recording)
    path.write_bytes(data)
    os.utime(path, ns=(time_ns, time_ns))


def test_unreadable_recording_does_not_delay_the_next(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    file = tmp_path / RANK.recording
    file.symlink_to("elsewhere")
    until(analyzer, lambda: analyzer.counts[FAILED] == 1, RANK)
    file.unlink()
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)


def test_recording_is_analysed(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)
    figures = analyzer.look([RANK])[RANK]
    (step,) = figures.steps
    assert (step.peak_active, step.largest_request, step.allocations) == (32 << 20, 20 << 20, 1)
    assert (step.smallest_limits["recorded"], step.smallest_limits["default"]) == (40 << 20, 32 << 20)
    assert analyse(recorded) == (step,)
    active = {shot.at: shot.measured.active for shot in figures.devices[0].snapshots}
    assert (active, figures.devices[0].largest_request) == ({"boundary": 12 << 20, "peak": 32 << 20}, 20 << 20)


def test_worker_imports_nothing_from_the_working_directory(
    tmp_path: Path, recorded: bytes, analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gpufrag", "json"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: any(analyzer.counts.values()), RANK)
    assert analyzer.counts[ANALYSED] == 1


def test_next_recording_waits_for_budget(tmp_path: Path, recorded: bytes, analyzer: Analyzer, clock: Clock) -> None:
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)
    write(tmp_path, RANK, recorded, time_ns=2 * 10**9)
    analyzer.look([RANK])
    write(tmp_path, RANK, recorded, time_ns=3 * 10**9)
    until(analyzer, lambda: analyzer.counts[SKIPPED] == 1, RANK)
    assert analyzer.counts == {ANALYSED: 1, SKIPPED: 1}
    clock.now = 1e6
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 2, RANK)


def test_budget_of_one_rank_does_not_hold_up_another(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    write(tmp_path, RANK, recorded)
    write(tmp_path, OTHER, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 2, RANK, OTHER)
    assert all(figures.steps for figures in analyzer.look([RANK, OTHER]).values())


def test_broken_recording_is_counted(tmp_path: Path, analyzer: Analyzer, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, RANK, b"nonsense")
    until(analyzer, lambda: analyzer.counts[FAILED] == 1, RANK)
    assert analyzer.look([RANK])[RANK] == RankFigures()
    assert "step analysis failed" in caplog.text


def test_want_of_a_thread_does_not_end_the_analysis(
    tmp_path: Path, recorded: bytes, analyzer: Analyzer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Timer", refuse)
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[FAILED] == 1, RANK)
    monkeypatch.undo()
    clock.now = 1e6
    write(tmp_path, RANK, recorded, time_ns=2 * 10**9)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)


def test_recording_is_not_copied_on_its_way_to_a_worker() -> None:
    data, worker = b"x" * (8 << 20), _Process(MEASURE, 60.0)
    tracemalloc.start()
    try:
        assert "not a step recording" in (worker.ask(data).error or "")
        assert tracemalloc.get_traced_memory()[1] < len(data) // 2
    finally:
        tracemalloc.stop()
        worker.close()


def test_worker_starts_again_after_a_restart_but_not_after_its_end() -> None:
    worker = _Process(MEASURE, 60.0)
    worker.ask(b"x")
    worker.close()
    worker.ask(b"x")
    worker.close(for_good=True)
    with pytest.raises(OSError, match="has ended"):
        worker.ask(b"x")


def cgroup_of(folder: Path, limit: str, used: int) -> tuple[Path, Path]:
    """The file that names a process's cgroup, and the folder of cgroups; the limit is on the parent."""
    groups = folder / "cgroup"
    (groups / "unit" / "child").mkdir(parents=True)
    (groups / "unit" / "memory.max").write_text(f"{limit}\n")
    (groups / "unit" / "memory.stat").write_text(f"anon {used}\nfile {1 << 40}\nshmem 1\n")
    (groups / "unit" / "child" / "memory.max").write_text("max\n")
    own = folder / "own"
    own.write_text("3:memory:/elsewhere\n0::/unit/child\n")
    return own, groups


@pytest.mark.parametrize(("limit", "room"), [("1000", 899), ("50", 0), ("max", None), ("nonsense", None)])
def test_room_is_what_the_cgroup_leaves_without_the_page_cache(tmp_path: Path, limit: str, room: int | None) -> None:
    assert cgroup_room(*cgroup_of(tmp_path, limit, 100)) == room
    assert cgroup_room(tmp_path / "missing", tmp_path) is None


def test_worker_fails_before_it_exceeds_the_limit_of_the_sidecars_cgroup(tmp_path: Path) -> None:
    """The kernel would end the sidecar with it, and again after its next start."""
    own, groups = cgroup_of(tmp_path, str(256 << 20), 56 << 20)
    program = (
        "import pathlib, sys\nfrom gpufrag.sidecar.analysis import limit_memory\n"
        "limit_memory(*map(pathlib.Path, sys.argv[1:]))\n"
        "bytearray(60 << 20)\nprint('small')\nbytearray(160 << 20)"
    )
    command = [sys.executable, "-c", program, str(own), str(groups)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "small\n"
    assert done.stderr.splitlines()[-1] == "MemoryError"


def step_of(at: str, events: StepEvents | None, heap: Heap) -> bytes:
    one = DeviceRecording(0, heap, events, Driver(100 * GIB, 141 * GIB, 20 * GIB))
    return encode(Recording(time.time(), 0.5, "2.11.0", (one,), at))


def test_events_that_do_not_lead_to_the_heap_leave_the_boundary(tmp_path, recorded: bytes, analyzer: Analyzer) -> None:
    wrong = StepEvents(["alloc"], [12345], [512], [0])
    write(tmp_path, RANK, step_of("boundary", wrong, decode(recorded).devices[0].heap))
    until(analyzer, lambda: analyzer.counts[INCONSISTENT] == 1, RANK)
    (device,) = analyzer.look([RANK])[RANK].devices.values()
    assert ([shot.at for shot in device.snapshots], device.largest_request) == (["boundary"], None)


def test_snapshot_without_events_keeps_the_earlier_peak(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)
    analyzer._clock.now = 1e6  # type: ignore[attr-defined]
    heap = decode(recorded).devices[0].heap
    write(tmp_path, RANK, step_of("timer", None, heap), time_ns=2 * 10**9, file=RANK.heap)
    until(analyzer, lambda: len(analyzer.look([RANK])[RANK].devices[0].snapshots) == 3, RANK)
    figures = analyzer.look([RANK])[RANK]
    assert ({shot.at for shot in figures.devices[0].snapshots}, figures.devices[0].largest_request) == (
        {"boundary", "peak", "timer"},
        20 << 20,
    )
    assert figures.steps
    assert analyzer.counts == {ANALYSED: 1}


def test_step_is_measured_although_a_snapshot_followed(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    heap = decode(recorded).devices[0].heap
    write(tmp_path, RANK, step_of("boundary", None, heap), time_ns=2 * 10**9, file=RANK.heap)
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)
    analyzer._clock.now = 1e6  # type: ignore[attr-defined]

    def times() -> dict[str, float]:
        return {shot.at: shot.time for shot in analyzer.look([RANK])[RANK].devices[0].snapshots}

    until(analyzer, lambda: times()["boundary"] > 50.0, RANK)
    assert times()["peak"] == 50.0
    assert analyzer.counts == {ANALYSED: 1}


def test_both_files_of_a_rank_share_its_budget(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)
    snapshot = step_of("boundary", None, decode(recorded).devices[0].heap)
    write(tmp_path, RANK, snapshot, time_ns=2 * 10**9, file=RANK.heap)
    analyzer.look([RANK])
    write(tmp_path, RANK, snapshot, time_ns=3 * 10**9, file=RANK.heap)
    until(analyzer, lambda: analyzer.counts[SKIPPED] == 1, RANK)


def test_link_is_not_followed(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    (tmp_path / "elsewhere").write_bytes(recorded)
    (tmp_path / RANK.recording).symlink_to("elsewhere")
    until(analyzer, lambda: analyzer.counts[FAILED] == 1, RANK)
    assert analyzer.look([RANK])[RANK] == RankFigures()


def test_slow_analysis_is_ended(tmp_path: Path, recorded: bytes, clock: Clock) -> None:
    analyzer = Analyzer(tmp_path, cpu_share=0.02, timeout=0.001, clock=clock)
    try:
        write(tmp_path, RANK, recorded)
        until(analyzer, lambda: analyzer.counts[TIMED_OUT] == 1, RANK)
    finally:
        analyzer.close()


STUCK = """
import sys, time
from gpufrag.sidecar import analysis
def stuck(data, work=analysis.%s):
    if b'"seconds":9.9' in data:
        time.sleep(1000)
    return work(data)
analysis.%s = stuck
sys.exit(analysis.main(%r))
"""


@pytest.mark.parametrize(("function", "kind"), [("measured", MEASURE), ("analyse", ANALYSE)])
def test_stuck_recording_holds_no_other_rank(tmp_path, recorded: bytes, clock, monkeypatch, function, kind) -> None:
    def command(module: str, work: str) -> list[str]:
        return [sys.executable, "-c", STUCK % (function, function, kind)] if work == kind else original(module, work)

    original = analysis.worker_command
    monkeypatch.setattr(analysis, "worker_command", command)
    monkeypatch.setattr(analysis, "MEASURE_TIMEOUT", 3.0)
    analyzer = Analyzer(tmp_path, cpu_share=0.02, timeout=60.0 if kind == MEASURE else 3.0, clock=clock)
    try:
        write(tmp_path, RANK, recorded.replace(b'"seconds":0.5', b'"seconds":9.9', 1))
        until(analyzer, lambda: analyzer.counts[TIMED_OUT] == 1, RANK)
        write(tmp_path, OTHER, recorded)
        until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK, OTHER)
        assert analyzer.look([RANK, OTHER])[OTHER].steps
    finally:
        analyzer.close()


def test_rank_that_is_gone_is_forgotten(tmp_path: Path, recorded: bytes, analyzer: Analyzer) -> None:
    write(tmp_path, RANK, recorded)
    until(analyzer, lambda: analyzer.counts[ANALYSED] == 1, RANK)
    assert analyzer.look([]) == {}
