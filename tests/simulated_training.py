"""A training process whose memory and interpreter are simulated, with the agent's real search for the peak beside it.

What matters is copied from a recorded decoder: which operation allocates what, how long each takes, which of them
need Python (all but the backward pass), and what a reading, a sleep and a copy take. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from statistics import quantiles
from typing import NamedTuple

from gpufrag.agent.clocks import Clocks
from gpufrag.agent.peak import Level
from gpufrag.agent.peaks import Peaks
from gpufrag.agent.settings import AgentSettings

MIB = 1 << 20
READING, COPY_BEGINS, COPY, SLACK = 18e-6, 25e-6, 600e-6, 57e-6


class Event(NamedTuple):
    """After `wait` seconds, `size` bytes are taken or, if negative, given back."""

    wait: float
    size: int
    python: bool


@dataclass(frozen=True)
class Decoder:
    """Bytes: `activation` of one operation of one layer and `logits`, both for a batch of length 1."""

    layers: int = 8
    activation: int = 8 * MIB
    logits: int = 120 * MIB
    parameters: int = 900 * MIB
    operation: float = 20e-6

    def step(self, rng: Random, length: float = 1.0, micro_batches: int = 1) -> Iterator[Event]:
        """Forward and backward passes and one optimizer step."""
        for micro_batch in range(micro_batches):
            yield from self.forward(rng, length)
            yield from self._loss(rng, int(self.logits * length))
            yield from self._backward(rng, length, gradients=micro_batch == 0)
        yield from self._optimizer(rng)

    def forward(self, rng: Random, length: float, *, keeps: bool = True) -> Iterator[Event]:
        size = int(self.activation * length)
        for _ in range(self.layers * 10):
            yield self._event(rng, size, python=True)
            if not keeps:
                yield self._event(rng, -size, python=True)

    def evaluate(self, rng: Random, length: float, batches: int) -> Iterator[Event]:
        for _ in range(batches):
            yield from self.forward(rng, length, keeps=False)

    def _loss(self, rng: Random, size: int) -> Iterator[Event]:
        yield from (self._event(rng, size, python=True), self._event(rng, size, python=True))
        yield self._event(rng, -size, python=True, slow=2)
        yield self._event(rng, 512, python=True, slow=4)
        yield from (self._event(rng, size, slow=10), self._event(rng, size, slow=5))
        yield from (self._event(rng, -size), self._event(rng, -size - 512), self._event(rng, -size, slow=2))

    def _backward(self, rng: Random, length: float, *, gradients: bool) -> Iterator[Event]:
        size, gradient = int(self.activation * length), self.parameters // (3 * self.layers)
        for _ in range(self.layers):
            for _ in range(10):
                yield from (self._event(rng, size), self._event(rng, -size), self._event(rng, -size))
            if gradients:
                yield self._event(rng, gradient)

    def _optimizer(self, rng: Random) -> Iterator[Event]:
        share = self.parameters // (3 * self.layers)
        for _ in range(self.layers):
            yield from (self._event(rng, share, python=True), self._event(rng, -share, python=True))
        yield from (self._event(rng, -share, python=True) for _ in range(self.layers))

    def _event(self, rng: Random, size: int, *, python: bool = False, slow: float = 1.0) -> Event:
        return Event(self.operation * slow * rng.lognormvariate(0, 0.4), size, python)


@dataclass
class Training:
    """Steps one after the other, each of which is followed. It is source and clock of the search at once."""

    steps: Iterable[list[Event]]
    seed: int = 0
    settings: AgentSettings = field(default_factory=AgentSettings)
    now: float = 0.0
    active: int = 1 << 30
    allocations: int = 0
    peak: int = 0
    spent: float = 0.0
    coverage: list[float] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._events: list[Event] = []
        self._copied: int | None = None
        clocks = Clocks(monotonic=lambda: self.now, cpu=lambda: 0.0, sleep=self.sleep)
        self.peaks = Peaks(self, self.settings, clocks, self._copy, self._spend)

    def run(self) -> Training:
        for events in self.steps:
            self._events = events[::-1]
            self._copied, highest = None, self._highest(events)
            self.peaks.boundary()
            self.peaks.begin(0)
            while self.peaks.underway and self._events:
                self.peaks.follow(lambda: not self._events, self.sleep)
            self._advance(3600.0)
            self.coverage += [self._copied / highest] if self._copied else []
            self.methods.append(self.peaks.method)
        return self

    def level(self, device: int) -> Level | None:
        self._advance(READING / 4, interpreter=False)
        level = Level(self.active, self.allocations, self.peak)
        self._advance(READING * self._rng.uniform(0.7, 0.9), interpreter=False)
        return level

    def sleep(self, seconds: float) -> None:
        self._advance(seconds + SLACK * self._rng.lognormvariate(0, 0.2))

    def _copy(self) -> None:
        self._advance(COPY_BEGINS * self._rng.uniform(0.8, 1.4), interpreter=False)
        self._copied = self.active
        self._advance(COPY, interpreter=False)

    def _spend(self, cause: str, seconds: float) -> None:
        self.spent += seconds

    def _advance(self, seconds: float, *, interpreter: bool = True) -> None:
        """Let the program go on; where it needs Python, only if the interpreter is free."""
        left = seconds
        while self._events:
            wait, size, python = self._events[-1]
            if wait > left or (python and not interpreter):
                self._events[-1] = Event(max(0.0, wait - left), size, python)
                break
            left -= wait
            self._events.pop()
            self.active += size
            self.allocations += size > 0
            self.peak = max(self.peak, self.active)
        self.now += seconds if self._events or seconds < 3600 else seconds - left

    def _highest(self, events: list[Event]) -> int:
        level = highest = self.active
        for event in events:
            level += event.size
            highest = max(highest, level)
        return highest


def percentiles(values: list[float]) -> tuple[float, float, float]:
    """The tenth, the median and the ninetieth."""
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[4], tenths[8]


def steps(count: int, step: Callable[[int], Iterable[Event]]) -> Iterator[list[Event]]:
    return (list(step(number)) for number in range(count))
