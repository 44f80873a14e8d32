"""TensorFlow in this process: bytes in use now and at the peak, per GPU. Its public interface has no more.

TensorFlow initialises its devices when asked for their memory, so it is asked only after the program has done that
itself, which only its private context shows.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ..wire.sample import Sums
from .arrival import CONTEXT
from .sources import BareSource, DeviceReading


class TensorflowSource(BareSource):
    framework, function = "tensorflow", "tensorflow.get_memory_info"

    @property
    def backend(self) -> str:
        return self._environment.get("TF_GPU_ALLOCATOR") or "bfc"

    def _devices(self) -> range:
        context = getattr(sys.modules.get(CONTEXT), "_context", None)
        if not getattr(context, "_initialized", False):
            return range(0)
        devices = getattr(context, "_logical_devices", None) or ()
        return range(sum(device.device_type == "GPU" for device in devices))

    def _figures(self, device: Any) -> DeviceReading:
        info = self._module.config.experimental.get_memory_info(f"GPU:{device}")
        current = info.get("current")
        return DeviceReading(device, sums=Sums(time.time(), current, current, peak_active=info.get("peak")))
