"""A framework that tells a few sums of its allocator and nothing else: no heap, no steps, no graphs, no errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .sources import Capture, DeviceReading, Live


class BareSource:
    """What such sources have in common; each adds its name, its devices and their figures.

    `figures` reads every device in use. Without steps `live` is asked directly after `read`, and answers from that.
    """

    def __init__(self, figures: Callable[[], Sequence[DeviceReading]]) -> None:
        self._figures = figures
        self._latest: Sequence[DeviceReading] = ()

    def read(self) -> Sequence[DeviceReading]:
        self._latest = self._figures()
        return self._latest

    def live(self, device: int) -> Live | None:
        sums = next((reading.sums for reading in self._latest if reading.device == device), None)
        return Live(sums.allocated, None) if sums and sums.allocated is not None else None

    def capture(self) -> Capture | None:
        return None

    def recording(self) -> bool:
        return False

    def watch_steps(self, on_step: Callable[[object], None]) -> bool:
        return False

    def graph_underway(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing was hooked into the framework."""
