"""A kubelet for the fake API server: a pod is a real process, which ends when the pod is deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from restarter.fake_api.controllers import deleting
from restarter.fake_api.server import FakeApi

LOOK_S = 0.1
Run = Callable[[str], AbstractContextManager[Any]]
"""From a pod's name to its process."""


class Kubelet:
    """A node with room for one pod: the next one starts when the process of the last has ended."""

    def __init__(self, api: FakeApi, run: Run) -> None:
        self._api, self._run = api, run
        self._uid: str | None = None
        self._process = ExitStack()
        self._ended = threading.Event()

    def serve(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._sync()
        self._process.close()

    def end(self) -> None:
        self._ended.set()

    def _sync(self) -> None:
        wanted = self._wanted()
        if self._uid is not None and self._uid not in wanted:
            self._process.close()
            self._uid = None
        if self._uid is None and wanted:
            self._uid, name = next(iter(wanted.items()))
            self._process.enter_context(self._run(name))

    def _wanted(self) -> dict[str, str]:
        """Return the names of the pods to run, by uid, and set their addresses."""
        with self._api.world.lock:
            pods = [pod for pod in self._api.world.pods() if not deleting(pod) and pod["status"]["phase"] == "Running"]
            for pod in pods:
                pod["status"]["podIP"] = "127.0.0.1"
            return {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}


@contextmanager
def kubelet(api: FakeApi, run: Run) -> Iterator[None]:
    one = Kubelet(api, run)
    thread = threading.Thread(target=one.serve, name="kubelet")
    thread.start()
    try:
        yield
    finally:
        one.end()
        thread.join(60)
