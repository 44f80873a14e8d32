"""A leak reported by the complete agent: in the log, in its sample, and in a scrape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_source import LiveSource
from gpufrag.agent.agent import Agent
from gpufrag.agent.settings import AgentSettings
from gpufrag.metrics import families
from gpufrag.metrics.view import Fleet, RankView
from gpufrag.wire.folder import FileName
from gpufrag.wire.sample import ProcessSample, decode

Eventually = Callable[[Callable[[], object]], None]
KEPT = 2_000_000


@pytest.fixture
def source(request: pytest.FixtureRequest) -> LiveSource:
    return LiveSource(cost=0.0, present=getattr(request, "param", True))


@pytest.fixture
def running(source: LiveSource, tmp_path: Path) -> Iterator[Agent]:
    """One that publishes only when it is asked to."""
    agent = Agent(source, AgentSettings(interval=1000.0, publish_every=500.0, folder=tmp_path))
    agent.start()
    yield agent
    agent.stop()


def _published(folder: Path) -> ProcessSample:
    (file,) = (file for file in folder.glob("*.json") if FileName.parse(file.name))
    return decode(file.read_bytes())


def _train(source: LiveSource, steps: int) -> None:
    for _ in range(steps):
        source.keep(KEPT)
        source.step()


def test_leak_is_logged_as_soon_as_it_is_certain(
    running: Agent, source: LiveSource, tmp_path: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    eventually(lambda: running.latest and running.latest.devices)
    with caplog.at_level(logging.WARNING, "gpufrag"):
        _train(source, 60)
        eventually(lambda: running.latest and running.latest.devices[0].leak)
    assert len(caplog.messages) == 1
    sample = _published(tmp_path)
    (family,) = (
        f for f in families(Fleet(sample.time, (RankView(sample),))) if f.name == "gpufrag_leak_bytes_per_step"
    )
    assert [round(series.value) for series in family.samples] == [KEPT]


@pytest.mark.parametrize("source", [False], indirect=True)
def test_device_used_later_is_read_after_first_step(source: LiveSource, running: Agent, eventually: Eventually) -> None:
    eventually(lambda: running.latest)
    assert running.latest is not None
    assert running.latest.devices == ()
    source.present = True
    source.step()
    eventually(lambda: running.latest and running.latest.devices)
