"""The state of a supervised job, as its control socket shows and changes it. Safe from any thread."""

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
    """`path` is the record file, `pause` the file that forbids restarts; `wake` is called when a restart is ordered."""

    def __init__(self, job: SupervisedJob, path: Path, pause: Path, wake: Callable[[], None]) -> None:
        self._job, self._path, self._pause, self._wake = job, path, pause, wake
        self._lock = threading.Lock()
        self._ordered, self._elastic_restarts = False, 0
        self._elastic: Callable[[], Elastic | None] = lambda: None
        self._processes: Callable[[], Sequence[int]] = tuple
        self._obstacle: Callable[[], str | None] = lambda: None

    @property
    def commands(self) -> dict[str, Callable[[Mapping[str, Any]], Answer]]:
        """The commands of the control socket."""
        return {"job": self.show, "remember": self.remember, "restart": self.order_restart}

    @property
    def restarts(self) -> int:
        return self._job.restarts

    @property
    def ordered(self) -> bool:
        """Whether a restart was ordered and has not started."""
        return self._ordered

    def observe(
        self,
        elastic: Callable[[], Elastic | None],
        processes: Callable[[], Sequence[int]],
        obstacle: Callable[[], str | None],
    ) -> None:
        """Set the functions that return torchrun's counts, the job's processes, and what prevents a new start."""
        self._elastic, self._processes, self._obstacle = elastic, processes, obstacle

    def show(self, request: Mapping[str, Any]) -> Answer:
        with self._lock:
            return {"job": encode(self._now())}

    def remember(self, request: Mapping[str, Any]) -> Answer:
        changes = _annotations(request.get("annotations"))
        with self._lock:
            if request.get("version") != self._job.version:
                return {"refused": CONFLICT}
            merged = {**self._job.annotations, **changes}
            annotations = {key: value for key, value in merged.items() if value is not None}
            if len(annotations) > MAX_ANNOTATIONS:
                raise GpufragError(f"{len(annotations)} annotations (limit {MAX_ANNOTATIONS}); remove some")
            changed = replace(self._now(), annotations=annotations, version=self._job.version + 1)
            if request.get("dry_run") is not True:
                self._set(changed)
            return {"job": encode(changed)}

    def order_restart(self, request: Mapping[str, Any]) -> Answer:
        with self._lock:
            job = self._now()
            if job.ending:
                raise GpufragError(f"{job.name} is ending and is not started again")
            if request.get("restarts") != job.restarts or self._ordered or not job.running:
                return {"refused": CONFLICT}
            if obstacle := self._obstacle():  # while the job still runs
                raise GpufragError(f"{job.name} could not be started again, so it keeps running: {obstacle}")
            if request.get("dry_run") is not True:
                self._ordered = True
                self._wake()
            return {"job": encode(job)}

    def ending(self) -> None:
        """A user ends the job."""
        self._change(ending=True)

    def stopping(self) -> None:
        """The ordered restart has started."""
        self._change(running=False)

    def start_again(self, start: Callable[[int], Started]) -> Started:
        """Call `start` with the new number of restarts; commands wait meanwhile. Raises what `start` raises."""
        with self._lock:
            restarts = self._job.restarts + 1
            started = start(restarts)
            self._set(replace(self._job, version=self._job.version + 1, running=True, restarts=restarts))
            self._ordered = False
            return started

    def order_done(self) -> None:
        """The ordered restart was done in place, or cannot be done."""
        self._ordered = False

    def write(self) -> None:
        """Best effort: the socket shows the same."""
        with suppress(OSError):
            write_file(self._path, json.dumps(encode(self._job)).encode() + b"\n")

    def _change(self, **changes: Any) -> None:
        with self._lock:
            self._set(replace(self._job, version=self._job.version + 1, **changes))

    def _set(self, job: SupervisedJob) -> None:
        self._job = job
        self.write()

    def _now(self) -> SupervisedJob:
        job = replace(self._job, paused=self._pause.exists(), processes=tuple(self._processes()))
        if not job.in_place:
            return job
        elastic = self._elastic()
        self._elastic_restarts = max(self._elastic_restarts, elastic.restarts if elastic else 0)
        return replace(job, elastic=elastic, restarts=self._elastic_restarts, running=elastic is not None)


def _annotations(raw: Any) -> dict[str, str | None]:
    if isinstance(raw, dict) and all(isinstance(value, (str, type(None))) for value in raw.values()):
        return raw
    raise GpufragError("annotations must be an object of strings and nulls")
