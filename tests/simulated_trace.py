"""Traces of the simulated allocator in torch's form: `from simulated_trace import Recorder`."""

from __future__ import annotations

from gpufrag.model.allocatable import Driver
from gpufrag.model.heap import AWAITING, DEFAULT_POOL
from gpufrag.model.settings import Settings
from gpufrag.model.simulator.allocator import Allocator
from gpufrag.model.simulator.blocks import Block
from gpufrag.model.trace.events import Event


class Recorder(Allocator):
    """An allocator that keeps its trace. What the streams finish with is noticed by the next request, as in torch.

    With `marked` the trace has the marks that torch's own lack.
    """

    def __init__(self, settings: Settings = Settings(), driver: Driver = Driver(), marked: bool = False) -> None:
        self.trace: list[Event] = []
        self._marked = marked
        self._finished: list[Block] = []
        super().__init__(settings, driver, observe=self.trace.append)

    def malloc(self, request: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        begin, retries = len(self.trace), self.counters.alloc_retries
        for block in self._finished:
            self.complete(block)
        self._finished.clear()
        block = super().malloc(request, stream, pool)
        if self._marked and self.counters.alloc_retries > retries:
            self.trace.insert(begin, Event("retry", None, 0, 0))
        if block is None:
            self.trace.append(
                Event("oom", None, self.settings.segment_size(self.settings.round(request)), stream, pool)
            )
        else:
            self.trace.append(Event("alloc", block.address, request, stream, pool))
        return block

    def free(self, block: Block) -> None:
        self._append("free_requested", block)
        if not block.shared:
            self._append("free_completed", block)
        super().free(block)

    def cache(self, size: int) -> None:
        """Leave a free segment."""
        block = self.malloc(size)
        assert block is not None
        self.free(block)

    def finish(self, block: Block) -> None:
        """The streams have finished with a block that was freed."""
        self._finished.append(block)

    def complete(self, block: Block) -> None:
        if block.state is AWAITING:
            self._append("free_completed", block)
        super().complete(block)

    def empty_cache(self, pool: tuple[int, int] = DEFAULT_POOL) -> None:
        if self._marked:
            self.trace.append(Event("empty_cache", None, 0, 0))
        super().empty_cache(pool)

    def _append(self, action: str, block: Block) -> None:
        self.trace.append(Event(action, block.address, block.requested, block.arena.stream, block.arena.pool.id))
