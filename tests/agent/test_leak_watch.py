"""Growing memory is found at step boundaries, within its budget, logged once, and named with history on."""

import os
from dataclasses import dataclass, field

import pytest

from fake_source import HandClock, LiveSource, ScriptedSource, StackedSource
from gpufrag.agent.leak_watch import BURST, NAMED_STEPS, SHARE
from gpufrag.agent.sampler import Sampler
from gpufrag.agent.settings import AgentSettings
from gpufrag.model.call_sites import Held, Sites
from gpufrag.model.leaks import FEWEST, LASTING
from gpufrag.wire.error_counter import ErrorCounter
from gpufrag.wire.sample import GrowingStack, Identity, Leak
from helpers import TESTS

IDENTITY = Identity("host", 1, 1.0)
MB = 1_000_000
PLACE = ("train.py:7 step",)


@dataclass
class Job:
    """Fake training steps under a sampler, with a clock that only the test moves."""

    source: LiveSource
    sampler: Sampler
    clock: HandClock
    woken: list[int] = field(default_factory=list)

    def steps(self, count: int, kept: int = 0, length: float = 0.1) -> None:
        for _ in range(count):
            self.clock.tick(length)
            self.source.keep(kept) if kept else None
            self.source.step()

    def leak(self) -> Leak | None:
        self.sampler.read()
        self.sampler.digest()
        (device,) = self.sampler.sample(IDENTITY).devices
        return device.leak


def job(threshold: int = MB, kind: type[LiveSource] = LiveSource, **scripted: object) -> Job:
    clock = HandClock()
    source = kind(clock=clock, **scripted)
    sampler = Sampler(source, AgentSettings(leak_threshold=threshold), ErrorCounter(), clock.clocks)
    made = Job(source, sampler, clock)
    sampler.watch_steps(lambda: made.woken.append(source.lives))
    sampler.read()
    return made


@pytest.mark.parametrize(("steps", "length"), [(60, 0.1), (3000, 0.005)])
def test_leak_is_found_at_long_and_short_steps(steps: int, length: float) -> None:
    training = job()
    training.steps(steps, kept=2 * MB, length=length)
    leak = training.leak()
    assert (leak.unit, round(leak.rate)) == ("step", 2 * MB)


def test_agent_is_woken_when_enough_points_exist() -> None:
    training = job()
    training.steps(FEWEST + 1, kept=2 * MB)
    assert training.source.lives - 1 == FEWEST + 1, "one point a step, and one second before the first"
    assert training.woken[-1] == FEWEST + 1
    assert training.sampler.read_in() <= 0


def test_flat_memory_is_no_leak_after_enough_points() -> None:
    training = job()
    training.steps(FEWEST - 1)
    assert training.leak() is None
    training.steps(10)
    assert training.leak() == Leak("step")


def test_growth_below_the_threshold_is_no_leak() -> None:
    training = job(threshold=3 * MB)
    training.steps(100, kept=2 * MB)
    assert training.leak() == Leak("step")


@pytest.mark.parametrize("length", [0.001, 0.02, 0.1])
def test_points_stay_within_their_budget(length: float) -> None:
    training = job()
    lived = training.source.lives
    began = training.clock.now
    training.steps(int(60 / length), length=length)
    spent = (training.source.lives - lived) * training.source.cost
    assert spent <= BURST + SHARE * (training.clock.now - began) + training.source.cost
    assert spent > 0.5 * min(SHARE * 60, training.source.cost * 60 / length)


def test_reading_that_waited_is_paid_for() -> None:
    training = job(cost=0.02)
    training.steps(1)
    lived = training.source.lives
    training.steps(95)
    assert training.source.lives == lived, "it is paid for by ten seconds"
    training.steps(10)
    assert training.source.lives == lived + 1


def test_source_without_live_memory_has_no_points(source: ScriptedSource, clock: HandClock) -> None:
    sampler = Sampler(source, AgentSettings(), ErrorCounter(), clock.clocks)
    training = Job(source, sampler, clock)
    sampler.watch_steps(lambda: None)
    sampler.read()
    training.steps(200)
    assert training.leak() is None


def _serve(serving: Job, seconds: float, kept: int) -> None:
    for _ in range(int(seconds)):
        serving.clock.tick(1.0)
        serving.source.keep(kept)
        serving.leak()


@pytest.mark.parametrize("blocks", [500, None])
def test_growing_server_is_judged_by_seconds(blocks: int | None) -> None:
    serving = job(steps=False, blocks=blocks)
    _serve(serving, LASTING / 2, kept=MB)
    assert serving.leak() is None
    for _ in range(int(LASTING * 3 / 2)):
        _serve(serving, 1, kept=MB)
        leak = serving.leak()
        assert leak is None or leak.rate > 0
    assert (leak.unit, round(leak.rate, -3)) == ("second", MB)


def test_training_that_begins_later_is_judged_by_steps() -> None:
    loading = job()
    _serve(loading, LASTING * 7 / 6, kept=MB)
    loading.steps(FEWEST + 1)
    assert loading.leak() == Leak("step")


LOGGED = {
    "one leak": ([(60, 2 * MB)] * 5, ["grows by 1.91 MiB per step"]),
    "growth that ended": ([(60, 2 * MB), (40, 0), (200, 0), (200, 0)], ["grows by", "has not grown since"]),
    "a new leak later": (
        [(60, 2 * MB), *[(20, 0)] * 40, *[(20, 2 * MB)] * 100],
        ["grows by", "has not grown since", "grows by"],
    ),
}


@pytest.mark.parametrize("case", LOGGED)
def test_growth_and_its_end_are_logged_once(case: str, caplog: pytest.LogCaptureFixture) -> None:
    training, (phases, expected) = job(), LOGGED[case]
    for steps, kept in phases:
        training.steps(steps, kept=kept, length=0.2)
        training.leak()
    starts = [f"gpufrag: device 0: allocated memory {words}" for words in expected]
    assert [line[: len(start)] for line, start in zip(caplog.messages, starts, strict=True)] == starts
    assert (training.leak() == Leak("step")) == (case == "growth that ended")


def test_leak_is_not_withdrawn_too_early() -> None:
    """Other memory hides a leak for some readings."""
    training, rates = job(), []
    training.steps(60, kept=2 * MB)
    training.leak()
    for _ in range(FEWEST + 20):
        training.steps(1, kept=0)
        leak = training.leak()
        assert leak is not None
        rates.append(leak.rate > 0)
    assert rates.index(False) >= FEWEST - 1
    assert not any(rates[rates.index(False) :])


def test_failed_point_is_paid_for() -> None:
    training, tried = job(), []

    def fail(device: int) -> None:
        tried.append(training.clock.tick(0.02))
        raise RuntimeError("gone")

    training.source.live = fail
    training.steps(95)
    assert len(tried) == 1
    assert training.sampler._stalls["stats"] == pytest.approx(0.02)


# --- call sites


@pytest.mark.parametrize(("at", "steps_before"), [("peak", 60), ("timer", 60), ("timer", 0)])
def test_memory_of_a_single_step_is_not_named(at: str, steps_before: int) -> None:
    training = job()
    training.steps(steps_before, kept=2 * MB)
    for blocks in (1, 2):
        training.sampler._leaks.compare(at, lambda blocks=blocks: {0: {PLACE: Held(blocks * MB, blocks)}})
    training.steps(60 - steps_before, kept=2 * MB)
    assert training.leak().stacks == ()


def test_history_names_the_growing_place(caplog: pytest.LogCaptureFixture) -> None:
    held = iter(range(1, 1000))
    training = job(places=lambda: {0: {PLACE: Held(next(held) * 40 * MB, next(held)), ("a",): Held(1, 1)}})
    for _ in range(5):
        training.steps(60, kept=2 * MB, length=0.2)
        leak = training.leak()
    assert [place.frames for place in leak.stacks] == [PLACE]
    assert leak.stacks[0].grown > 0
    assert [PLACE[0] in line for line in caplog.messages] == [False, True]


# --- the lines of a leak, without the user

LEAK, BUFFER = ("/job/train.py:40 step",), ("/job/train.py:12 load",)


def sites(steps: int) -> Sites:
    """A line that keeps two blocks per step, and one whose block is replaced in each step."""
    return {0: {LEAK: Held(2 * MB * steps, 2 * steps), BUFFER: Held(9 * MB, 1)}}


@pytest.fixture
def leaking() -> Job:
    found = job(kind=StackedSource, cost=0.0, copies=[sites(1), sites(NAMED_STEPS)])
    found.steps(60, kept=2 * MB)
    assert found.leak() is not None
    return found


def test_lines_that_keep_blocks_in_each_step_are_named(leaking: Job) -> None:
    leaking.steps(NAMED_STEPS + 1, kept=2 * MB)
    leak = leaking.leak()
    assert leak is not None
    assert leak.stacks == (GrowingStack(2 * MB * (NAMED_STEPS - 1), 2 * (NAMED_STEPS - 1), LEAK),)
    assert leaking.source.stacked == ["start", "copy", "stop"]


def test_docs_quote_both_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    found = job(kind=StackedSource, cost=0.0, copies=[sites(1), sites(NAMED_STEPS)])
    for steps in (60, NAMED_STEPS + 1):
        found.steps(steps, kept=2 * MB)
        found.leak()
    text = " ".join((TESTS.parent / "docs/leaks.md").read_text().split())
    lines = [line.replace(f" {os.getpid()} ", " 4711 ") for line in caplog.messages]
    assert [line in text for line in lines] == [True, True], lines


def test_process_without_steps_is_not_told_to_record_steps(caplog: pytest.LogCaptureFixture) -> None:
    serving = job(kind=StackedSource, steps=False)
    _serve(serving, LASTING * 7 / 6, kept=MB)
    (line,) = caplog.messages
    assert line.endswith("record the allocator's history in the program (docs/leaks.md)")


def test_stacks_are_recorded_once_for_each_growth(leaking: Job) -> None:
    for _ in range(5):
        leaking.steps(20, kept=2 * MB)
        leaking.leak()
    assert leaking.source.stacked.count("start") == 1


@pytest.mark.parametrize("lost", [0, 1], ids=["after the first step", "at the end"])
def test_program_that_takes_the_history_ends_the_search(leaking: Job, lost: int) -> None:
    leaking.source.copies[lost] = None
    leaking.steps(10, kept=2 * MB)
    leak = leaking.leak()
    assert leak is not None
    assert leak.stacks == ()
    assert not leaking.sampler.recorder.underway


def test_torch_that_cannot_resolve_stacks_quickly_is_not_asked_again() -> None:
    found = job(kind=StackedSource, cost=0.0, refuses=True)
    found.steps(60, kept=2 * MB)
    found.leak()
    found.steps(20, kept=2 * MB)
    assert found.source.stacked == ["start"]


def test_recording_of_stacks_ends_with_the_agent(leaking: Job) -> None:
    leaking.steps(1, kept=2 * MB)
    leaking.sampler.close()
    assert leaking.source.stacked == ["start", "stop"]
