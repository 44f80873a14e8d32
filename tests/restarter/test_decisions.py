"""Decisions as people and programs read them: the list, the line, the page."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser

import pytest

from gpufrag.restarter import decisions, page
from gpufrag.restarter.decisions import KEPT, Decision, Recorder
from gpufrag.restarter.errors import Away
from gpufrag.restarter.metrics import CIRCUIT_OPEN, DRY_RUN, EVENTS_LOST, Metrics
from restarter.memory_cluster import MemoryCluster, fail_at

EVIL = "<script>alert('\"&</script>\n\u202e"
OUTCOMES = [value for name, value in vars(decisions).items() if name.isupper() and isinstance(value, str)]


def decision(outcome: str = decisions.REFUSED, text: str = "Not restarted.") -> Decision:
    return Decision(1_800_000_000.0, outcome, "budget", text, "Alert", "cafe", "ml", "train-0", "Job.batch ml/train")


def recorder(stream: io.StringIO | None = None) -> Recorder:
    return Recorder(MemoryCluster(), Metrics(), stream or io.StringIO())


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


def test_the_latest_thousand_are_kept_the_newest_first() -> None:
    one = recorder()
    for number in range(KEPT + 5):
        one.tell(decision(text=str(number)))
    assert [kept.text for kept in one.latest()[:2]] == ["1004", "1003"]
    assert len(one.latest()) == KEPT


def test_a_line_is_json_whatever_is_in_it() -> None:
    stream = io.StringIO()
    recorder(stream).tell(decision(text=EVIL))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["text"] == EVIL
    assert json.loads(line)["time"] == "2027-01-15T08:00:00+00:00"


def test_a_closed_stdout_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    stream.close()
    one = recorder(stream)
    one.tell(decision())
    assert len(one.latest()) == 1
    assert "could not be written" in caplog.text


def test_an_event_that_is_not_taken_is_counted() -> None:
    cluster, metrics = MemoryCluster(), Metrics()
    cluster.fault = fail_at(0, False, Away("503"))
    Recorder(cluster, metrics, io.StringIO()).tell(decision(), cluster.ref)
    assert metrics.value(EVENTS_LOST) == 1


@pytest.mark.parametrize("outcome", [one for one in OUTCOMES if one != decisions.CLOSED])
def test_every_outcome_can_be_an_event(outcome: str) -> None:
    cluster = MemoryCluster()
    Recorder(cluster, Metrics(), io.StringIO()).tell(decision(outcome), cluster.ref)
    assert cluster.events[0].reason.isalpha()


def test_the_page_escapes_what_comes_from_outside() -> None:
    metrics = Metrics()
    rendered = page.render([Decision(0.0, *[EVIL] * 7)], 0.0, metrics).decode()
    found = Text(rendered)
    assert "script" not in found.tags
    assert found.text.count(EVIL.splitlines()[0]) == 6  # one is namespace and pod


def test_the_page_says_how_things_stand() -> None:
    metrics = Metrics()
    assert "circuit unknown" in Text(page.render([], 0.0, metrics).decode()).text
    metrics.set(CIRCUIT_OPEN, 1)
    metrics.set(DRY_RUN, 1)
    text = Text(page.render([], 0.0, metrics).decode()).text
    assert "dry run: nothing is restarted, circuit open, 0 under way, 0 waiting" in text
    assert "Nothing was decided yet." in text
