"""TensorFlow in this process: bytes in use now and at most, of each GPU. Its public interface tells no more.

TensorFlow initialises its devices when it is asked for their memory. So it is asked only once the program has done
that itself, which only its private context tells.
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
from .bare_source import BareSource
from .device_names import named
from .sources import DeviceFacts, DeviceReading
from .torch.api import REFUSALS

CONTEXT = "tensorflow.python.eager.context"
ALLOCATOR = "TF_GPU_ALLOCATOR"


class TensorflowSource(BareSource):
    """`tensorflow` is the module that the process has imported itself."""

    framework = "tensorflow"

    def __init__(
        self, tensorflow: ModuleType, trouble: ErrorCounter, environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(self._all)
        self._tensorflow: Any = tensorflow
        self._trouble, self._environment = trouble, environment

    @property
    def framework_version(self) -> str | None:
        return getattr(self._tensorflow, "__version__", None)

    def facts(self, device: int) -> DeviceFacts:
        return named(self._environment.get(ALLOCATOR) or "bfc", device, self._environment)

    def _all(self) -> Sequence[DeviceReading]:
        return [reading for device in range(_gpus()) if (reading := self._read(device)) is not None]

    def _read(self, device: int) -> DeviceReading | None:
        began = time.perf_counter()
        try:
            info = self._tensorflow.config.experimental.get_memory_info(f"GPU:{device}")
        except REFUSALS as error:
            self._trouble.note("tensorflow.get_memory_info", error, "figures of TensorFlow's allocator are absent")
            return None
        held = time.perf_counter() - began
        current, peak = info.get("current"), info.get("peak")
        return DeviceReading(device, held=held, sums=Sums(time.time(), current, current, peak_active=peak))


def _gpus() -> int:
    """How many the program has initialised."""
    context = getattr(sys.modules.get(CONTEXT), "_context", None)
    if not getattr(context, "_initialized", False):
        return 0
    devices = getattr(context, "_logical_devices", None) or ()
    return sum(device.device_type == "GPU" for device in devices)


def connect(framework: ModuleType, trouble: ErrorCounter) -> TensorflowSource:
    return TensorflowSource(framework, trouble)
