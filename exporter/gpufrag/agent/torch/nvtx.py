"""Ranges on Nsight Systems' timeline for what the agent does, if GPUFRAG_NVTX=1: through torch's own binding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...wire.error_counter import ErrorCounter
from .api import REFUSALS, TorchSurface


class NvtxRanges:
    """Does nothing unless `on`, and nothing any more after torch has refused a call. Initialises no CUDA."""

    def __init__(self, surface: TorchSurface, errors: ErrorCounter, on: bool) -> None:
        self._surface, self._errors, self._on = surface, errors, on
        self._recording: object = None
        self._lock = threading.Lock()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Show the block's duration on the line of the calling thread."""
        pushed = self._on and self._call("range_push", f"gpufrag: {name}") is not None
        try:
            yield
        finally:
            if pushed:
                self._call("range_pop")

    def recording_started(self) -> None:
        """Begin a range that another thread may end."""
        if self._on:
            with self._lock:
                self._recording = self._call("range_start", "gpufrag: step recording")

    def recording_ended(self) -> None:
        with self._lock:
            recording, self._recording = self._recording, None
        if recording is not None:
            self._call("range_end", recording)

    def _call(self, name: str, *arguments: object) -> object:
        try:
            function = self._surface.find(f"cuda.nvtx.{name}")
            if function is None:
                raise AttributeError(f"torch.cuda.nvtx has no {name}")
            return function(*arguments)
        except REFUSALS as error:
            self._on = False
            self._errors.note("nvtx", error, "the agent's ranges are absent from the timeline")
            return None
