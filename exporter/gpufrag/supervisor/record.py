"""The job as its supervisor's socket shows it and lets it be changed. Any thread may ask."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..errors import GpufragError
from ..wire.folder import write_file
from ..wire.supervised_job import CONFLICT, Elastic, SupervisedJob, encode

MAX_ANNOTATIONS = 64
Answer = dict[str, Any]
Started = TypeVar("Started")


class Record:
    """`path` is the record for people, `pause` the file that forbids restarts; `wake` is called for a restart."""

    def __init__(self, job: SupervisedJob, path: Path, pause: Path, wake: Callable[[], None]) -> None:
        self._job, self._path, self._pause, self._wake = job, path, pause, wake
        self._lock = threading.Lock()
        self._wanted, self._seen = False, 0
        self._elastic: Callable[[], Elastic | None] = lambda: None
        self._processes: Callable[[], Sequence[int]] = tuple
        self._obstacle: Callable[[], str | None] = lambda: None

    @property
    def commands(self) -> dict[str, Callable[[Mapping[str, Any]], Answer]]:
        """For the control socket."""
        return {"job": self.show, "remember": self.remember, "restart": self.restart}

    @property
    def restarts(self) -> int:
        return self._job.restarts

    @property
    def wanted(self) -> bool:
        """Whether a restart has been asked for and has not begun."""
        return self._wanted

    def observe(
        self,
        elastic: Callable[[], Elastic | None],
        processes: Callable[[], Sequence[int]],
        obstacle: Callable[[], str | None],
    ) -> None:
        """How to learn what torchrun has done by itself, which processes there are, and what forbids a new start."""
        self._elastic, self._processes, self._obstacle = elastic, processes, obstacle

    def show(self, request: Mapping[str, Any]) -> Answer:
        with self._lock:
            return {"job": encode(self._now())}

    def remember(self, request: Mapping[str, Any]) -> Answer:
        changes = _annotations(request.get("annotations"))
        with self._lock:
            if request.get("version") != self._job.version:
                return {"refused": CONFLICT}
            annotations = {
                key: value for key, value in {**self._job.annotations, **changes}.items() if value is not None
            }
            if len(annotations) > MAX_ANNOTATIONS:
                raise GpufragError(f"more than {MAX_ANNOTATIONS} annotations; remove some")
            changed = replace(self._now(), annotations=annotations, version=self._job.version + 1)
            if request.get("dry_run") is not True:
                self._keep(changed)
            return {"job": encode(changed)}

    def restart(self, request: Mapping[str, Any]) -> Answer:
        with self._lock:
            job = self._now()
            if job.ending:
                raise GpufragError(f"{job.name} was told to end, and is not started again")
            if request.get("restarts") != job.restarts or self._wanted or not job.running:
                return {"refused": CONFLICT}
            if missing := self._obstacle():  # while it still runs
                raise GpufragError(f"{job.name} could not be started again, and runs on: {missing}")
            if request.get("dry_run") is not True:
                self._wanted = True
                self._wake()
            return {"job": encode(job)}

    def ends(self) -> None:
        """Somebody has told the job to end."""
        self._change(ending=True)

    def stopped(self) -> None:
        """The restart that was wanted has begun."""
        self._change(running=False)

    def start_again(self, start: Callable[[int], Started]) -> Started:
        """By `start`, which is given the new count; who asks meanwhile is answered after it. Raises what it raises."""
        with self._lock:
            restarts = self._job.restarts + 1
            started = start(restarts)
            self._keep(replace(self._job, version=self._job.version + 1, running=True, restarts=restarts))
            self._wanted = False
            return started

    def done(self) -> None:
        """What was wanted has been done otherwise, or cannot be."""
        self._wanted = False

    def write(self) -> None:
        """Best effort: the socket tells the same."""
        with suppress(OSError):
            write_file(self._path, json.dumps(encode(self._job)).encode() + b"\n")

    def _change(self, **changes: Any) -> None:
        with self._lock:
            self._keep(replace(self._job, version=self._job.version + 1, **changes))

    def _keep(self, job: SupervisedJob) -> None:
        self._job = job
        self.write()

    def _now(self) -> SupervisedJob:
        job = replace(self._job, paused=self._pause.exists(), processes=tuple(self._processes()))
        if not job.in_place:
            return job
        elastic = self._elastic()
        self._seen = max(self._seen, elastic.restarts if elastic else 0)
        return replace(job, elastic=elastic, restarts=self._seen, running=elastic is not None)


def _annotations(raw: Any) -> dict[str, str | None]:
    if isinstance(raw, dict) and all(isinstance(value, (str, type(None))) for value in raw.values()):
        return raw
    raise GpufragError("annotations is no object of texts and nulls")
