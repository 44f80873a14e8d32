"""The circuit as the worker and the web see it: asked before each restart, told of each failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..logs import event
from .circuit import HOUR_S, STORE_ERRORS, Circuit, Store
from .clock import Clock
from .ledger import Ledger
from .metrics import CIRCUIT_OPEN, Metrics
from .policy import Fleet
from .settings import PolicySettings

Change = Callable[[Circuit], Circuit]
log = logging.getLogger(__name__)


@dataclass
class Fuse:
    """What could not be written yet is written before anything else is asked: no failure is forgotten."""

    store: Store
    policy: PolicySettings
    clock: Clock
    metrics: Metrics
    _unwritten: list[Change] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fleet(self, in_flight: int, ledger: Ledger) -> Fleet:
        """What is so over all jobs. Raises STORE_ERRORS: then it is not known whether anything may restart."""
        circuit = self._write() or self.store.load()
        self._show(circuit)
        here = ledger.within(HOUR_S, self.clock.steady())
        return Fleet(in_flight, max(circuit.begun_in_hour(self.clock.now()), here), circuit.opened)

    def begun(self) -> None:
        """Count a restart. Raises STORE_ERRORS."""
        now = self.clock.now()
        self._show(self.store.update(lambda circuit: circuit.begun(now)))

    def failed(self, what: str) -> None:
        """A restart failed, or did not help."""
        now = self.clock.now()
        self._note(lambda circuit: circuit.failed(now, what, self.policy))

    def trip(self, why: str) -> None:
        self._note(lambda circuit: circuit.open(why))

    def close(self) -> None:
        """By a person. Raises STORE_ERRORS."""
        with self._lock:
            self._unwritten.clear()
        self._show(self.store.update(Circuit.closed))

    def refresh(self) -> None:
        """Show what others have made of it; where it cannot be read, nothing is shown."""
        try:
            self._show(self._write() or self.store.load())
        except STORE_ERRORS as error:
            self.metrics.set(CIRCUIT_OPEN, None)
            event(log, logging.WARNING, "the state of the circuit cannot be read", reason=error)

    def _note(self, change: Change) -> None:
        with self._lock:
            self._unwritten.append(change)
        self.refresh()

    def _write(self) -> Circuit | None:
        circuit = None
        with self._lock:
            while self._unwritten:
                circuit = self.store.update(self._unwritten[0])
                del self._unwritten[0]
        return circuit

    def _show(self, circuit: Circuit) -> None:
        self.metrics.set(CIRCUIT_OPEN, circuit.opened is not None)
