"""Torch's observer of out-of-memory errors: called in the thread that has one, before the error is made.

By then the allocator has flushed and asked again, and has let go of its lock: the statistics and the snapshot are
safe there, and show what was left. Torch has no way to take an observer out again.
"""

from __future__ import annotations

from collections.abc import Callable

from ...wire.error_counter import ErrorCounter
from ..sources import Fault
from .api import REFUSALS, TorchSurface

ATTACH = "_C._cuda_attach_out_of_memory_observer"
EVERY_DEVICE = (2, 6)
"""Before, torch gave the observer to device 0 alone, and an error on any other became an error of another kind."""


def attach(surface: TorchSurface, trouble: ErrorCounter, on_oom: Callable[[Fault], None]) -> bool:
    """Have `on_oom` called at each error from now on; False where this torch cannot, or not without harm.

    Only once CUDA is in use, or in the thread that is just initialising it: torch would do so by itself here.
    """
    function = surface.find(ATTACH)
    if function is None or not _in_use(surface) or surface.ask("cuda.get_allocator_backend") != "native":
        return False
    if surface.release < EVERY_DEVICE and surface.ask("cuda.device_count") != 1:
        return False

    def observer(device: int, size: int, total: int, free: int) -> None:
        try:
            on_oom(Fault(device, size, free))
        except Exception as error:  # it would be raised in place of the error that the program may know how to catch
            trouble.note("oom", error, "this error is not explained")

    try:
        function(observer)
    except REFUSALS as error:
        trouble.note(f"torch.{ATTACH}", error, "out-of-memory errors are not explained")
        return False
    return True


def _in_use(surface: TorchSurface) -> bool:
    return bool(surface.ask("cuda.is_initialized") or surface.value("cuda._tls.is_initializing"))
