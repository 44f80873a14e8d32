"""Decisions as people and programs read them: the list, the JSON line, the Event, the page."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser

from gpufrag.restarter import decisions, page
from gpufrag.restarter.backend import Away, Job
from gpufrag.restarter.clock import Clock
from gpufrag.restarter.decisions import MAX_DECISIONS, Decision, DecisionLog
from gpufrag.restarter.metrics import CIRCUIT_OPEN, DRY_RUN, EVENTS_LOST, Metrics
from restarter.worker_rig import START_S, alert

EVIL = "<script>alert('\"&</script>\n\u202e"
JOB = Job("fake", "job train", "u", {}, "")


def log(stream: io.StringIO | None = None, fail: bool = False) -> tuple[DecisionLog, list[Decision]]:
    shown: list[Decision] = []

    def notify(job: Job, decision: Decision) -> None:
        if fail:
            raise Away("503")
        shown.append(decision)

    clock = Clock(lambda: START_S, lambda: 0.0)
    return DecisionLog(Metrics(), clock, notify, stream or io.StringIO()), shown


class Text(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_newest_decisions_are_kept():
    one, _ = log()
    for number in range(MAX_DECISIONS + 5):
        one.publish(decisions.REFUSED, "daily-budget", str(number))
    assert [kept.text for kept in one.latest()[:2]] == ["1004", "1003"]
    assert len(one.latest()) == MAX_DECISIONS


def test_any_text_makes_one_json_line():
    stream = io.StringIO()
    log(stream)[0].publish(decisions.REFUSED, "daily-budget", EVIL, alert(), JOB)
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["text"], found["time"]) == (EVIL, "2027-01-15T08:00:00+00:00")
    assert (found["alert"], found["namespace"], found["job"]) == ("GpuMemoryFragmented", "ml", "job train")


def test_closed_stdout_is_logged_only(caplog):
    stream = io.StringIO()
    stream.close()
    one, shown = log(stream)
    one.publish(decisions.STARTED, "started", "text", job=JOB)
    assert (len(one.latest()), len(shown)) == (1, 1)
    assert "cannot write a decision" in caplog.text


def test_lost_event_is_counted():
    one, _ = log(fail=True)
    one.publish(decisions.STARTED, "started", "text", job=JOB)
    assert one.metrics.value(EVENTS_LOST) == 1


def test_page_escapes_all_values():
    found = Text(page.render([Decision(0.0, *[EVIL] * 7)], 0.0, Metrics()).decode())
    assert "script" not in found.tags
    assert found.text.count(EVIL.splitlines()[0]) == 6  # namespace and pod are not shown with a job


def test_page_shows_the_state():
    metrics = Metrics()
    assert "circuit breaker unknown" in Text(page.render([], 0.0, metrics).decode()).text
    metrics.set(CIRCUIT_OPEN, 1)
    metrics.set(DRY_RUN, 1)
    text = Text(page.render([], 0.0, metrics).decode()).text
    assert "dry run, circuit breaker open, 0 restarts in progress, 0 alerts waiting" in text
    assert "No decisions yet." in text
