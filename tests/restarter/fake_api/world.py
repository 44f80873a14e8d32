"""The cluster behind the server: its objects, and the controllers that act between two requests."""

from __future__ import annotations

from restarter.fake_api.controllers import collect_garbage, controllers, run_kubelet
from restarter.fake_api.store import POD, Raw, Store, of

NAMESPACE = "ml"
SETTLE = 25
"""Ticks after which nothing changes any more."""


class World(Store):
    """Time is counted in requests, so no test waits for a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.grace_ticks = 2
        """How long a deleted pod keeps running."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted: nothing is created there, and patches are accepted."""
        self._controllers = controllers()

    def tick(self, times: int = 1) -> None:
        """Run every controller once, then the kubelet."""
        with self.lock:
            for _ in range(times):
                self.ticks += 1
                for served, controller in self._controllers.items():
                    for raw in self.of_kind(served):
                        controller(self, raw)
                run_kubelet(self, self.grace_ticks)
                collect_garbage(self)

    def apply(self, manifest: Raw, settle: bool = True) -> Raw:
        """Create the object and run the controllers until it runs. Returns the live object."""
        namespace = manifest["metadata"].get("namespace", NAMESPACE)
        with self.lock:
            raw = self.create(of(manifest["apiVersion"], manifest["kind"]), namespace, manifest)
            self.tick(SETTLE if settle else 0)
            return raw

    def get(self, group_version: str, kind: str, name: str, namespace: str = NAMESPACE) -> Raw:
        with self.lock:
            return self.find(of(group_version, kind), namespace, name)

    def pods(self) -> list[Raw]:
        with self.lock:
            return self.of_kind(POD, NAMESPACE)

    def events(self) -> list[Raw]:
        with self.lock:
            return self.of_kind(of("events.k8s.io/v1", "Event"), NAMESPACE)

    def end_pod(self, name: str) -> None:
        """Let its containers exit with 0."""
        with self.lock:
            self.set_status(self.find(POD, NAMESPACE, name), {"phase": "Succeeded"})
            self.tick()
