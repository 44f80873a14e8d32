"""The cluster behind the server: its objects, and the controllers that act between two requests."""

from __future__ import annotations

from typing import Any

from restarter.fake_api import serving_controllers, training_controllers
from restarter.fake_api.job_controller import JobController
from restarter.fake_api.pods import POD, collect_garbage, run_kubelet, set_status
from restarter.fake_api.served import of
from restarter.fake_api.store import Store

NAMESPACE = "ml"
SETTLE = 25
"""Ticks after which nothing changes any more."""


class World:
    """Time is counted in requests, so no test waits for a clock."""

    def __init__(self) -> None:
        self.store = Store()
        self.grace_ticks = 2
        """How long a deleted pod keeps running."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted: nothing is created there, and patches are accepted."""
        self._jobs = JobController(self.store)

    def tick(self, times: int = 1) -> None:
        """Run every controller once, then the kubelet."""
        with self.store.lock:
            for _ in range(times):
                self.store.ticks += 1
                self._jobs.reconcile()
                training_controllers.reconcile(self.store)
                serving_controllers.reconcile(self.store)
                run_kubelet(self.store, self.grace_ticks)
                collect_garbage(self.store, self.grace_ticks)

    def apply(self, manifest: dict[str, Any], settle: bool = True) -> dict[str, Any]:
        """Create the object and run the controllers until it runs. Returns the live object."""
        namespace = manifest["metadata"].get("namespace", NAMESPACE)
        with self.store.lock:
            raw = self.store.create(of(manifest["apiVersion"], manifest["kind"]), namespace, manifest)
            self.tick(SETTLE if settle else 0)
            return raw

    def get(self, group_version: str, kind: str, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        with self.store.lock:
            return self.store.get(of(group_version, kind), namespace, name)

    def pods(self, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        with self.store.lock:
            return self.store.of_kind(POD, namespace)

    def events(self, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        with self.store.lock:
            return self.store.of_kind(of("events.k8s.io/v1", "Event"), namespace)

    def end_pod(self, name: str, succeeded: bool, namespace: str = NAMESPACE) -> None:
        """Let its containers exit."""
        with self.store.lock:
            pod = self.store.get(POD, namespace, name)
            set_status(self.store, pod, {"phase": "Succeeded" if succeeded else "Failed"})
            self.tick()
