"""The defragmentation before a restart: when it happens, when it spares the restart, and what a crash leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from fake_source import RESULT
from gpufrag.checkpoint.protocol import DEFRAGMENT, PREPARED, Answers, RankCommand, RankState
from gpufrag.errors import Unavailable
from gpufrag.restarter import metrics, reasons
from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.defragment import Defragmenter
from gpufrag.restarter.reasons import Refused
from gpufrag.restarter.settings import DefragmentSettings, PrometheusSettings, RestarterConfig
from gpufrag.wire.defragmentation import Result
from restarter.memory_backend import MemoryBackend
from restarter.worker_rig import START_S, Rig, alert

PATIENCE_S = 20.0
SETTINGS = DefragmentSettings(timeout=30.0, watch=60.0)
SPARED = ["defragmented defragmented"]
RESTARTED = ["started started", "restarted restarted"]
WATCHED = RestarterConfig(defragment=SETTINGS, prometheus=PrometheusSettings("http://prometheus:9090"))


@dataclass
class Ranks:
    """The ranks of a job, which answer at once; `results` by rank. `error`: why they cannot."""

    results: list[Result] = field(default_factory=lambda: [RESULT, RESULT])
    error: str | None = None
    asked: list[str] = field(default_factory=list)
    options: object = None
    state: str = PREPARED

    def ask(self, command: RankCommand) -> Answers:
        assert command.action is DEFRAGMENT
        self.asked.append(command.name)
        if self.error == "away":
            raise Unavailable("the API server is away")
        names = {"prepare": "prepared", "at": "promised", "confirm": "saved"}
        self.state = names.get(command.name, self.state)
        self.options = command.fields.get("options", self.options)
        target = command.fields.get("step")
        return Answers(tuple(self._rank(number, command.fields["id"], target) for number in range(len(self.results))))

    def _rank(self, number: int, order: str, target: int | None) -> RankState:
        size, results = len(self.results), (self.results[number],) if self.state == "saved" else ()
        place = ("host", 100 + number, number, size)
        return RankState(*place, order, self.state, False, 7, 0.5, target, None, self.error, results)


def rig(ranks: Ranks | None = None, opted_in: bool = True, **options: object) -> Rig:
    backend = MemoryBackend()
    if opted_in:
        backend.job.annotations["gpufrag.dev/defragment"] = "true"
    defragmenter = Defragmenter(lambda job: ranks.ask, SETTINGS) if ranks else None
    return Rig(backend=backend, defragmenter=defragmenter, **options)  # type: ignore[arg-type]


def go(made: Rig) -> Rig:
    """Run until nothing is in progress. The ranks are asked in a real thread."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        made.turn()
        if not made.metrics.value(metrics.IN_PROGRESS) and not made.metrics.value(metrics.QUEUE):
            return made
        assert time.monotonic() < deadline, made.outcomes
        time.sleep(0.001)


def counted(made: Rig, label: str) -> float | None:
    return made.metrics.value(metrics.DEFRAGMENTATIONS, label)


def firing_until(calls: int, then: Refused | None) -> Callable[[Alert], Refused | None]:
    """What Prometheus reports: the alert fires for the first `calls` questions."""
    left = iter(range(calls))
    return lambda one: None if next(left, None) is not None else then


def test_low_ratio_spares_the_restart_and_counts_as_none() -> None:
    made = go(rig(Ranks()).send())
    assert made.outcomes == SPARED
    record = made.backend.record
    assert (record.count, record.history_s, record.phase) == (0, (), None)
    assert record.defragmented_s is not None
    assert made.backend.suspensions == 0
    assert counted(made, "not-checked") == 1
    (event,) = made.backend.events
    assert "9.54 MiB moved on all 2 ranks at step" in event.text
    assert "worst ratio now 1.00" in event.text


def test_ranks_are_asked_for_the_configured_ratio() -> None:
    ranks = Ranks()
    go(rig(ranks).send())
    assert isinstance(ranks.options, dict)
    assert (ranks.options["target_ratio"], ranks.options["plan_only"]) == (2.0, False)


@pytest.mark.parametrize("ratio", [2.01, None])
def test_one_rank_above_the_target_is_restarted(ratio: float | None) -> None:
    made = go(rig(Ranks([RESULT, replace(RESULT, ratio_after=ratio)])).send())
    assert made.outcomes == ["not-defragmented not-enough", *RESTARTED]
    assert made.backend.record.count == 1


def test_whole_heap_between_steps_is_restarted() -> None:
    nothing = replace(RESULT, moved_bytes=0, done=False)
    made = go(rig(Ranks([nothing, nothing])).send())
    assert made.outcomes == ["not-defragmented not-enough", *RESTARTED]
    assert "0 B moved" in made.backend.events[0].text


@pytest.mark.parametrize(
    ("error", "text"),
    [("only torch can move", "rank 0, rank 1 cannot defragment: only torch can move"), ("away", "cannot reach all")],
)
def test_failed_defragmentation_is_followed_by_the_restart(error: str, text: str) -> None:
    made = go(rig(Ranks(error=error)).send())
    assert made.outcomes == ["not-defragmented failed", *RESTARTED]
    assert text in made.backend.events[0].text
    assert counted(made, "failed") == 1


def test_restarter_without_access_to_the_ranks_restarts() -> None:
    made = go(rig(None).send())
    assert made.outcomes == ["not-defragmented failed", *RESTARTED]
    assert "no access to the ranks" in made.backend.events[0].text


@pytest.mark.parametrize("value", [None, "false", "yes"])
def test_job_that_has_not_opted_in_is_only_restarted(value: str | None) -> None:
    ranks = Ranks()
    made = rig(ranks, opted_in=False)
    if value is not None:
        made.backend.job.annotations["gpufrag.dev/defragment"] = value
    assert go(made.send()).outcomes == RESTARTED
    assert ranks.asked == []


def test_refused_job_is_not_defragmented() -> None:
    ranks = Ranks()
    made = rig(ranks)
    made.backend.job.annotations["gpufrag.dev/pause"] = "true"
    assert go(made.send()).outcomes == ["refused paused"]
    assert ranks.asked == []


def test_alert_that_ends_spares_the_restart() -> None:
    recheck = firing_until(4, Refused(reasons.NOT_FIRING))
    made = go(rig(Ranks(), config=WATCHED, recheck=recheck).send())
    assert made.outcomes == SPARED
    assert counted(made, "enough") == 1


def test_alert_that_keeps_firing_leads_to_the_restart() -> None:
    made = go(rig(Ranks(), config=WATCHED, recheck=lambda one: None).send())
    assert made.outcomes == ["not-defragmented still-firing", *RESTARTED]
    assert made.time.wall_s - START_S > SETTINGS.watch


def test_silent_prometheus_leads_to_no_restart() -> None:
    recheck = firing_until(2, Refused(reasons.PROMETHEUS_UNAVAILABLE))
    made = go(rig(Ranks(), config=WATCHED, recheck=recheck).send())
    assert made.outcomes == SPARED
    assert counted(made, "not-checked") == 1


@pytest.mark.parametrize("passed_s", [600.0, 4000.0], ids=["fires again soon", "never ended"])
def test_second_alert_restarts_without_another_defragmentation(passed_s: float) -> None:
    ranks = Ranks()
    made = go(rig(ranks).send())
    made.time.move(passed_s)
    started_s = START_S - 400 if passed_s > 3600 else made.time.wall_s
    go(made.send(alert(fingerprint="beef", starts_at_s=started_s)))
    assert made.outcomes == [*SPARED, *RESTARTED]
    assert ranks.asked.count("prepare") == 1


def test_alert_long_after_is_defragmented_again() -> None:
    made = go(rig(Ranks()).send())
    made.time.move(4000.0)
    go(made.send(alert(fingerprint="beef", starts_at_s=made.time.wall_s)))
    assert made.outcomes == SPARED * 2


def test_two_restarters_defragment_once() -> None:
    ranks = Ranks()
    first = rig(ranks)
    second = first.again()
    first.send()
    second.send()
    for _ in range(5):
        second.turn(0.01)
        first.turn(0.01)
    go(second)
    go(first)
    assert sorted([first.outcomes, second.outcomes]) in (
        [SPARED, ["refused defragmented"]],
        [SPARED, ["refused restart-in-progress"]],
    )
    assert ranks.asked.count("at") == 1
    assert first.backend.record.count == 0


def test_alert_while_another_restarter_watches_is_refused() -> None:
    made = go(rig(Ranks()).send())
    made.time.move(SETTINGS.watch / 2)
    go(made.again().send(alert(fingerprint="beef")))
    assert made.backend.events[-1].reason == "defragmented"
    assert made.backend.record.count == 0


def test_dry_run_names_both_and_does_neither() -> None:
    ranks = Ranks()
    made = go(rig(ranks, policy=replace(Rig().policy, dry_run=True)).send())
    assert made.outcomes == ["would-restart dry-run"]
    assert "Would defragment and, if that does not help, restart" in made.backend.events[0].text
    assert ranks.asked == []


def test_exit_of_the_restarter_removes_its_claim() -> None:
    ranks = Ranks()
    made = rig(ranks)
    made.send()
    while not ranks.asked:
        made.turn(0.01)
    assert made.backend.record.phase == "claimed"
    made.worker.stop()
    made.worker.run()
    assert made.backend.record.phase is None
