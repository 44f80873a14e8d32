"""The circuit breaker over all jobs: restarts that fail or come too often open it, and only a person closes it.

Its state is stored outside this process, so it survives a restart of the restarter and two restarters share it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..errors import Unavailable
from ..logs import event
from .backend import BackendError, Changes, Conflict
from .clock import HOUR_S, Clock, LocalHistory
from .metrics import CIRCUIT_OPEN, Metrics
from .policy import Fleet
from .record import ANNOTATIONS, read_times, write_times
from .settings import PolicySettings

OPEN = f"{ANNOTATIONS}/circuit-open"
FAILURES = f"{ANNOTATIONS}/circuit-failures"
BEGUN = f"{ANNOTATIONS}/circuit-restarts"
NAMESPACES = f"{ANNOTATIONS}/circuit-namespaces"
MAX_CONFLICTS = 10
STORE_ERRORS = (BackendError, Unavailable)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Circuit:
    """The stored state. Times are Unix seconds."""

    opened: str | None = None
    """Why it is open."""
    failures_s: tuple[float, ...] = ()
    begun_s: tuple[float, ...] = ()
    """When the restarts of the last hour began."""
    namespaces: tuple[str, ...] = ()
    """Where restarts began: searched for unfinished ones even if the config no longer lists them."""

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Circuit:
        """Never raises. Any text in `circuit-open` opens it."""
        return cls(
            annotations.get(OPEN) or None,
            read_times(annotations.get(FAILURES, "")),
            read_times(annotations.get(BEGUN, "")),
            tuple(sorted({name for part in annotations.get(NAMESPACES, "").split(",") if (name := part.strip())})),
        )

    def annotations(self) -> dict[str, str | None]:
        return {
            OPEN: self.opened,
            FAILURES: write_times(self.failures_s),
            BEGUN: write_times(self.begun_s),
            NAMESPACES: ",".join(self.namespaces) or None,
        }

    def begun_in_hour(self, now_s: float) -> int:
        return sum(now_s - at < HOUR_S for at in self.begun_s)

    def begun(self, now_s: float, namespace: str = "") -> Circuit:
        namespaces = tuple(sorted({*self.namespaces, *filter(None, [namespace])}))
        begun_s = (*(at for at in self.begun_s if now_s - at < HOUR_S), now_s)
        return replace(self, begun_s=begun_s, namespaces=namespaces)

    def without(self, namespaces: Collection[str]) -> Circuit:
        return replace(self, namespaces=tuple(name for name in self.namespaces if name not in namespaces))

    def failed(self, now_s: float, what: str, settings: PolicySettings) -> Circuit:
        """Return the state after one more restart that failed or did not help; too many open the circuit breaker."""
        failures = (*(at for at in self.failures_s if now_s - at < settings.circuit_window), now_s)
        changed = replace(self, failures_s=failures)
        if len(failures) < settings.circuit_failures:
            return changed
        return changed.open(f"{len(failures)} restarts failed or did not help, the last: {what}")

    def open(self, why: str) -> Circuit:
        """The first reason is kept."""
        return replace(self, opened=self.opened or why[:500])

    def closed(self) -> Circuit:
        return Circuit(begun_s=self.begun_s, namespaces=self.namespaces)


class CircuitStore(Protocol):
    """Where the state is stored. Both raise BackendError or Unavailable; any thread may call them."""

    def load(self) -> tuple[Mapping[str, str], Any]:
        """Return the annotations and their version."""

    def save(self, changes: Changes, version: Any) -> None:
        """Raises Conflict if the version has changed."""


Change = Callable[[Circuit], Circuit]


@dataclass
class CircuitBreaker:
    """Any thread may use it. Changes that could not be stored are stored before anything else is read."""

    store: CircuitStore
    policy: PolicySettings
    clock: Clock
    metrics: Metrics
    _unwritten: list[Change] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    namespaces: tuple[str, ...] = ()
    """As last read."""

    def fleet(self, in_progress: int, history: LocalHistory) -> Fleet:
        """Raises STORE_ERRORS: then no restart may begin."""
        circuit = self._current()
        here = history.within(HOUR_S, self.clock.steady())
        return Fleet(in_progress, max(circuit.begun_in_hour(self.clock.now()), here), circuit.opened)

    def begun(self, namespace: str = "") -> None:
        """Count a restart. Raises STORE_ERRORS."""
        now = self.clock.now()
        self._update(lambda circuit: circuit.begun(now, namespace))

    def forget(self, namespaces: Collection[str]) -> None:
        """Stop searching namespaces that have no unfinished restart."""
        if namespaces:
            self._update_later(lambda circuit: circuit.without(namespaces))

    def failed(self, what: str) -> None:
        """Count a restart that failed or did not help."""
        now = self.clock.now()
        self._update_later(lambda circuit: circuit.failed(now, what, self.policy))

    def open(self, why: str) -> None:
        self._update_later(lambda circuit: circuit.open(why))

    def close(self) -> None:
        """Raises STORE_ERRORS."""
        with self._lock:
            self._unwritten.clear()
        self._update(Circuit.closed)

    def refresh(self) -> None:
        """Export the stored state; if it cannot be read, export nothing."""
        try:
            self._current()
        except STORE_ERRORS as error:
            self.metrics.set(CIRCUIT_OPEN, None)
            event(log, logging.WARNING, "cannot read or write the state of the circuit breaker", reason=error)

    def _current(self) -> Circuit:
        with self._lock:
            while self._unwritten:
                self._update(self._unwritten[0])
                del self._unwritten[0]
        circuit = Circuit.read(self.store.load()[0])
        self.metrics.set(CIRCUIT_OPEN, circuit.opened is not None)
        self.namespaces = circuit.namespaces
        return circuit

    def _update_later(self, change: Change) -> None:
        with self._lock:
            self._unwritten.append(change)
        self.refresh()

    def _update(self, change: Change) -> None:
        for _ in range(MAX_CONFLICTS):
            annotations, version = self.store.load()
            circuit = change(Circuit.read(annotations))
            try:
                self.store.save(circuit.annotations(), version)
            except Conflict:
                continue
            self.metrics.set(CIRCUIT_OPEN, circuit.opened is not None)
            return
        raise Unavailable("the state of the circuit breaker keeps changing: check which other program writes it")
