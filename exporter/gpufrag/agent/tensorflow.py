"""TensorFlow in this process: bytes in use now and at the peak, per GPU. Its public interface has no more.

TensorFlow initialises its devices when asked for their memory, so it is asked only after the program has done that
itself, which only its private context shows.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ..wire.error_counter import ErrorCounter
from ..wire.sample import Sums
from .sources import BareSource, DeviceFacts, DeviceReading, device_facts
from .torch.api import REFUSALS

CONTEXT = "tensorflow.python.eager.context"
ALLOCATOR = "TF_GPU_ALLOCATOR"


class TensorflowSource(BareSource):
    """`tensorflow` is the module that the process has imported itself."""

    framework = "tensorflow"

    def __init__(
        self, tensorflow: ModuleType, errors: ErrorCounter, environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(self._all)
        self._tensorflow: Any = tensorflow
        self._errors, self._environment = errors, environment

    @property
    def framework_version(self) -> str | None:
        return getattr(self._tensorflow, "__version__", None)

    def facts(self, device: int) -> DeviceFacts:
        return device_facts(self._environment.get(ALLOCATOR) or "bfc", device, self._environment)

    def _all(self) -> Sequence[DeviceReading]:
        return [reading for device in range(_gpus()) if (reading := self._read(device)) is not None]

    def _read(self, device: int) -> DeviceReading | None:
        began = time.perf_counter()
        try:
            info = self._tensorflow.config.experimental.get_memory_info(f"GPU:{device}")
        except REFUSALS as error:
            self._errors.note("tensorflow.get_memory_info", error, "figures of TensorFlow's allocator are absent")
            return None
        held = time.perf_counter() - began
        current, peak = info.get("current"), info.get("peak")
        return DeviceReading(device, held=held, sums=Sums(time.time(), current, current, peak_active=peak))


def _gpus() -> int:
    """The number that the program has initialised."""
    context = getattr(sys.modules.get(CONTEXT), "_context", None)
    if not getattr(context, "_initialized", False):
        return 0
    devices = getattr(context, "_logical_devices", None) or ()
    return sum(device.device_type == "GPU" for device in devices)


def connect(framework: ModuleType, errors: ErrorCounter) -> TensorflowSource:
    return TensorflowSource(framework, errors)
