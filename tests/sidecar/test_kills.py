"""Agents killed at random moments while the sidecar is scraped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpufrag.config.sidecar import FolderSettings
from running_server import Running, running, sidecar_of

KILLS = 500
RANKS = 4
SCRIPT = Path(__file__).with_name("killed_agents.py")
NUMBERED = ("gpufrag_steps_total", "gpufrag_sample_timestamp_seconds", "gpufrag_allocator_peak_active_bytes")


class Nursery:
    """Forks agents into `folder`; they die with it."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._pids = {rank: self._fork(rank) for rank in range(RANKS)}

    def _fork(self, rank: int) -> int:
        assert self._process.stdin
        assert self._process.stdout
        print(rank, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def kill_one(self, rank: int) -> None:
        os.kill(self._pids[rank], signal.SIGKILL)
        self._pids[rank] = self._fork(rank)

    def close(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        self._process.communicate(timeout=10)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    settings = FolderSettings(path=tmp_path, dead_process_retention=0.3)  # so that sweeping is in the test too
    with running(sidecar_of(tmp_path, folder=settings).service()) as one:
        yield one


class Scraper(threading.Thread):
    """Scrape without a pause until stopped, and collect the errors."""

    def __init__(self, served: Running) -> None:
        super().__init__()
        self._served, self._enough = served, threading.Event()
        self._scraped = threading.Event()
        self.living = self.dead = 0
        self.faults: list[str] = []

    def run(self) -> None:
        while not self._enough.is_set():
            answer = self._served.get("/metrics")
            samples = [s for family in text_string_to_metric_families(answer.text) for s in family.samples]
            self.faults += [f"status {answer.status_code}"] if answer.status_code != 200 else faults(samples)
            up = [sample.value for sample in samples if sample.name == "gpufrag_up"]
            self.living, self.dead = self.living + up.count(1), self.dead + up.count(0)
            self._scraped.set()

    def await_scrape(self) -> None:
        self._scraped.clear()
        assert self._scraped.wait(30)

    def stop(self) -> None:
        self._enough.set()
        self.join(30)


def faults(samples: list[Sample]) -> Iterator[str]:
    """Of one scrape: a series twice, a file that was torn, a source that failed, figures of two samples in one rank."""
    counted = Counter((sample.name, tuple(sorted(sample.labels.items()))) for sample in samples)
    yield from (f"{series} {count} times" for series, count in counted.items() if count > 1)
    for sample in samples:
        if sample.name == "gpufrag_sample_files_skipped" and sample.value:
            yield f"skipped: {sample.labels}"
        if sample.name == "gpufrag_collector_success" and not sample.value:
            yield f"failed: {sample.labels}"
    for process in {_process(sample) for sample in samples if sample.name == "gpufrag_up" and sample.value}:
        numbers = {s.name: s.value for s in samples if s.name in NUMBERED and _process(s) == process}
        if set(numbers) != set(NUMBERED) or len(set(numbers.values())) != 1:
            yield f"{process}: {numbers}"


def _process(sample: Sample) -> tuple[str | None, str | None]:
    return sample.labels.get("rank"), sample.labels.get("process")


def test_kill_at_any_moment_breaks_no_scrape(nursery: Nursery, served: Running) -> None:
    scraper, chance = Scraper(served), random.Random(1)
    scraper.start()
    for number in range(KILLS):
        time.sleep(chance.uniform(0, 0.01))
        nursery.kill_one(chance.randrange(RANKS))
        if number % 20 == 0:  # on a slow machine too, most kills fall into a scrape or between two
            scraper.await_scrape()
    scraper.stop()
    assert scraper.faults == []
    assert min(scraper.living, scraper.dead) > 0
