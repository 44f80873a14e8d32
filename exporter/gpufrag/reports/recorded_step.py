"""The HTML report of a step recording, which has a heap and events but no stacks."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.allocatable import limited
from ..model.needs import step_trace
from ..model.trace.columns import Trace
from ..model.trace.profile import profile_trace
from ..wire.recording import DeviceRecording
from . import html
from .explain import Explained


def render(devices: Iterable[DeviceRecording], name: str) -> bytes:
    """Raises BadInput if a device's events do not lead to its heap."""
    return html.render([_explained(one) for one in devices], name)


def _explained(found: DeviceRecording) -> Explained:
    trace = Trace(step_trace(found.events))
    driver = limited(found.driver, found.heap.settings)
    return Explained(profile_trace(trace, found.heap, driver, {}), trace, found.heap)
