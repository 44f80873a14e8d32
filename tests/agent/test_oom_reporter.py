"""OOM reports: their content, stacks and bounds, and that no failure reaches the job."""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fake_source import HandClock, ScriptedSource
from gpufrag.agent import oom_reporter
from gpufrag.agent.oom_reporter import OomReporter
from gpufrag.agent.sources import Capture, Fault
from gpufrag.model.allocatable import Driver
from gpufrag.model.fragmentation import measure
from gpufrag.model.verdict import Cause
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.oom_report import MAX_BYTES, OomReport, encode
from gpufrag.wire.sample import DeviceSample, Identity, ProcessSample, Snapshot

IDENTITY = Identity("host", 7, 1.0, rank=3)
GIB = 1 << 30
DEVICE = DeviceSample(0, "native")


PEAK = Snapshot(1.0, "peak", 0.005, measure(ScriptedSource().heap, Driver()))


@dataclass
class Bench:
    """A reporter over a scripted source, its reports, and how often it published."""

    source: ScriptedSource = field(default_factory=ScriptedSource)
    clock: HandClock = field(default_factory=HandClock)
    errors: ErrorCounter = field(default_factory=ErrorCounter)
    kept: list[OomReport] = field(default_factory=list)
    published: int = 0
    keep: Callable[[OomReport], None] | None = None

    def __post_init__(self) -> None:
        self.reporter = OomReporter(
            self.capture,
            lambda: IDENTITY,
            self._keep,
            self._publish,
            self.errors,
            self.clock.clocks,
            {0: PEAK}.get,
        )
        self.reporter.watching = True

    def capture(self) -> Capture | None:
        return self.source.capture()

    def fail(self, requested: int = 40 * GIB, device: int = 0) -> None:
        self.reporter.explain(Fault(device, requested, self.source.free))

    def sample(self, **changes: object) -> ProcessSample:
        return ProcessSample(IDENTITY, self.clock.now, (DEVICE,), **changes)

    @property
    def causes(self) -> dict[str, int]:
        ooms = self.reporter.counted(self.sample()).devices[0].ooms
        return {cause: count for cause, count in ooms.causes.items() if count}

    def _keep(self, report: OomReport) -> None:
        (self.keep or self.kept.append)(report)

    def _publish(self) -> None:
        self.published += 1


@pytest.fixture
def bench() -> Bench:
    return Bench()


def raising(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(("device", "peak"), [(0, PEAK), (1, None)])
def test_report_has_the_peak_of_the_last_recorded_step(bench: Bench, device: int, peak: Snapshot | None) -> None:
    bench.fail(device=device)
    assert bench.kept[0].last_peak == peak


def test_report_has_request_heap_and_verdict(bench: Bench) -> None:
    bench.fail(100 * GIB)
    (report,) = bench.kept
    source = bench.source
    assert (report.number, report.requested, report.identity) == (1, 100 * GIB, IDENTITY)
    assert report.measured == measure(source.heap, Driver(source.free, source.size, source.size // 2))
    assert (report.cause, report.alloc_conf) == ("limit", "conf")
    assert report.evidence
    assert report.next_step
    assert report.stack[0].function.endswith("fail")


def test_causes_are_counted_from_zero_and_published(bench: Bench) -> None:
    ooms = bench.reporter.counted(bench.sample()).devices[0].ooms
    assert ooms.causes == dict.fromkeys((cause.value for cause in Cause), 0)
    assert (ooms.last_time, ooms.last_requested, bench.published) == (None, None, 0)
    bench.fail(100 * GIB)
    bench.clock.tick(5)
    bench.fail(90 * GIB)
    ooms = bench.reporter.counted(bench.sample()).devices[0].ooms
    assert (bench.causes, bench.published) == ({"limit": 2}, 2)
    assert (ooms.last_time, ooms.last_requested) == (bench.clock.now, 90 * GIB)


def test_framework_without_faults_has_no_counts(bench: Bench) -> None:
    bench.reporter.watching = False
    assert bench.reporter.counted(bench.sample()).devices == (DEVICE,)


def test_report_has_the_last_sixty_samples(bench: Bench) -> None:
    for step in range(100):
        bench.clock.tick(1)
        bench.reporter.remember(bench.sample(steps=step))
    bench.fail()
    (report,) = bench.kept
    assert [point.time for point in report.recent] == [bench.clock.now - 59 + i for i in range(60)]
    assert report.steps == 99


def test_log_line_has_verdict_and_next_step(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fail(100 * GIB)
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.ERROR
    assert text.startswith("gpufrag: out of memory on device 0: limit; 100 GiB requested; the largest request")
    assert bench.kept[0].next_step in text
    assert "\n" not in text


def test_failing_log_handler_is_harmless(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_reporter.logger, "error", raising(RuntimeError("a handler")))
    bench.fail()
    assert len(bench.kept) == 1


def test_full_disk_loses_only_the_report(bench: Bench) -> None:
    bench.keep = raising(OSError(28, "No space left on device"))
    bench.fail(100 * GIB)
    assert (bench.causes, bench.errors.counts, bench.published) == ({"limit": 1}, {"oom": 1}, 1)


@pytest.mark.parametrize("error", [None, RuntimeError("torch"), KeyError("a new key")])
def test_missing_or_unknown_heap_leaves_the_rest(bench: Bench, error: Exception | None, monkeypatch) -> None:
    if error is None:
        monkeypatch.setattr(bench.source, "capture", lambda: None)
    else:
        monkeypatch.setattr(oom_reporter, "measure_heap", raising(error))
    bench.fail()
    (report,) = bench.kept
    assert (report.measured, report.requested) == (None, 40 * GIB)
    assert bench.errors.counts == ({"oom": 1} if error else {})


@pytest.mark.parametrize("error", [ZeroDivisionError(), MemoryError(), RecursionError()])
def test_failure_in_a_report_is_counted_and_not_raised(bench: Bench, error: Exception) -> None:
    bench.source.during_capture = raising(error)
    bench.fail()
    assert (bench.kept, bench.causes, bench.errors.counts) == ([], {"unknown": 1}, {"oom": 1})
    bench.source.during_capture = lambda: None
    bench.fail()
    assert len(bench.kept) == 1, "the next one is explained again"


def test_oom_within_a_report_is_only_counted(bench: Bench) -> None:
    bench.source.during_capture = lambda: bench.fail(GIB)
    bench.fail(100 * GIB)
    assert len(bench.kept) == 1
    assert bench.causes == {"unknown": 1, "limit": 1}


def test_oom_of_another_thread_does_not_wait(bench: Bench) -> None:
    def another() -> None:
        thread = threading.Thread(target=bench.fail)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    bench.source.during_capture = another
    bench.fail()
    assert len(bench.kept) == 1
    assert sum(bench.causes.values()) == 2


def test_no_oom_of_many_threads_is_lost(bench: Bench) -> None:
    threads = [threading.Thread(target=lambda: [bench.fail() for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(bench.causes.values()) == 400
    assert [report.number for report in bench.kept] == list(range(1, 9))


def test_repeated_ooms_get_few_reports(bench: Bench) -> None:
    for _ in range(1000):
        bench.fail()
    assert (len(bench.kept), bench.source.captures) == (8, 8)
    assert sum(bench.causes.values()) == 1000
    bench.clock.tick(5)
    bench.fail()
    bench.fail()
    assert len(bench.kept) == 9


@example(conf="\U0001f600" * 5000, names=["\U0001f600" * 400] * 60, samples=80)
@given(
    conf=st.text(st.characters(), max_size=5000),
    names=st.lists(st.text(st.characters(), max_size=400), max_size=60),
    samples=st.integers(0, 80),
)
def test_report_is_bounded_and_encodable(conf: str, names: list[str], samples: int) -> None:
    bench = Bench()
    heap, reading = bench.source.heap, bench.source.read()
    capture = Capture(lambda: heap, reading, {}, conf)
    bench.source.capture = lambda: capture
    for _ in range(samples):
        bench.reporter.remember(bench.sample())
    called_by(names, bench.fail)
    assert len(encode(bench.kept[0])) < MAX_BYTES // 2


def called_by(names: list[str], function: Callable[[], None]) -> None:
    """`function`, below functions of these names in a file of the last one."""
    for name in names:
        code = (lambda inner: inner()).__code__.replace(co_name=name, co_filename=names[-1] or "a")
        function = _calling(code, function)
    function()


def _calling(code: object, function: Callable[[], None]) -> Callable[[], None]:
    outer = type(_calling)(code, {})
    return lambda: outer(function)


# --- the Python stack of a report


def deep(levels: int, then: Callable[[], Any]) -> Any:
    return deep(levels - 1, then) if levels else then()


def test_stack_begins_with_the_innermost_frame() -> None:
    frames, stack_of = oom_reporter.current_stack()
    assert stack_of == "thread"
    assert frames[0].file == __file__
    assert frames[0].function == "test_stack_begins_with_the_innermost_frame"
    assert frames[0].line > 0


def test_deep_stack_is_cut_at_the_outer_end() -> None:
    frames, _ = deep(200, oom_reporter.current_stack)
    assert len(frames) == oom_reporter.MAX_FRAMES
    assert {frame.function for frame in frames} == {"deep"}


def test_thread_without_own_frames_shows_the_main_thread(monkeypatch) -> None:
    """As one of autograd's own: there is nothing in it but what the agent does."""
    seen = []
    monkeypatch.setattr(oom_reporter, "_OWN_FILES", (oom_reporter._OWN_FILES, __file__, threading.__file__))
    thread = threading.Thread(target=lambda: seen.append(oom_reporter.current_stack()))
    thread.start()
    thread.join(20)
    frames, stack_of = seen[0]
    assert stack_of == "main"
    assert frames


@given(st.text(st.characters(), max_size=400), st.integers(0, 300))
def test_cut_text_fits_in_json(text: str, most: int) -> None:
    written = json.dumps(oom_reporter.cut(text, most))
    assert len(written) <= most + 2
    json.loads(written).encode()


@given(st.text(st.characters(max_codepoint=126, exclude_categories=["Cc"]), max_size=100))
def test_short_name_is_not_cut(text: str) -> None:
    assert oom_reporter.cut(text) == text


def test_long_name_keeps_its_end() -> None:
    assert oom_reporter.cut("/very/long/path/train.py", 8) == "train.py"
