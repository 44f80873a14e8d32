"""NVML's error codes in our words, with how far each one reaches. Knows the names only, not the library."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from ..errors import Unavailable


class Scope(Enum):
    """How much is lost when a call fails."""

    ABSENT = "this machine has no such figure: normal, and said nowhere"
    FIGURE = "the figure exists and cannot be read: noted, and the rest goes on"
    DEVICE = "the GPU does not answer: reported, and the other GPUs go on"
    DRIVER = "nothing answers until NVML is initialised again"


class Fault(NamedTuple):
    scope: Scope
    text: str


class NvmlError(Unavailable):
    """A call to NVML that failed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.scope = fault.scope


FAULTS: Mapping[str, Fault] = {
    "LIBRARY_NOT_FOUND": Fault(
        Scope.DRIVER,
        "no NVML library (libnvidia-ml.so.1) here: normal in a container without a GPU; the agents' own figures serve",
    ),
    "DRIVER_NOT_LOADED": Fault(Scope.DRIVER, "the NVIDIA driver is not loaded: load it, or run where there is a GPU"),
    "LIB_RM_VERSION_MISMATCH": Fault(
        Scope.DRIVER,
        "the NVML library and the loaded driver are of different versions: restart the sidecar, or the machine if an "
        "upgrade is half done",
    ),
    "UNINITIALIZED": Fault(Scope.DRIVER, "NVML lost its state: it is initialised again at the next reading"),
    "OPERATING_SYSTEM": Fault(
        Scope.DRIVER, "the system keeps NVML from the driver: give the sidecar /dev/nvidiactl and the GPU's device file"
    ),
    "MEMORY": Fault(Scope.DRIVER, "NVML found no host memory for itself: raise the sidecar's memory limit"),
    "INSUFFICIENT_RESOURCES": Fault(Scope.DRIVER, "NVML found no room for itself: raise the sidecar's limits"),
    "GPU_IS_LOST": Fault(Scope.DEVICE, "the GPU is lost (it fell off the bus): drain the node and reset the GPU"),
    "RESET_REQUIRED": Fault(Scope.DEVICE, "the GPU must be reset: drain the node and run nvidia-smi --gpu-reset"),
    "GPU_NOT_FOUND": Fault(Scope.DEVICE, "the GPU is not there any more: look at dmesg for its Xid"),
    "UNKNOWN": Fault(Scope.DEVICE, "the GPU's driver failed within itself: look at dmesg for an Xid"),
    "TIMEOUT": Fault(Scope.DEVICE, "the GPU did not answer its driver in time: look at dmesg for an Xid"),
    "IRQ_ISSUE": Fault(Scope.DEVICE, "the GPU's interrupts do not arrive: look at dmesg, check the BIOS"),
    "INSUFFICIENT_POWER": Fault(Scope.DEVICE, "the GPU has no external power: check its cables"),
    "CORRUPTED_INFOROM": Fault(Scope.FIGURE, "the GPU's infoROM is corrupted: run nvidia-smi -q, ask the vendor"),
    "NO_PERMISSION": Fault(
        Scope.FIGURE, "not permitted to read it (usual for a whole GPU from a container that was given a MIG device)"
    ),
    "NOT_READY": Fault(Scope.FIGURE, "the driver is not ready to tell it yet: it is asked again at the next reading"),
    "INVALID_STATE": Fault(Scope.FIGURE, "the GPU is in a state in which it cannot tell it"),
    "IN_USE": Fault(Scope.FIGURE, "another program keeps it busy: it is asked again at the next reading"),
    "INSUFFICIENT_SIZE": Fault(Scope.FIGURE, "it grew while it was read: it is asked again at the next reading"),
    "INVALID_ARGUMENT": Fault(Scope.FIGURE, "the driver refuses the question, or a MIG device went while it was asked"),
    "ALREADY_INITIALIZED": Fault(Scope.FIGURE, "the driver says that NVML is initialised already"),
    "NOT_SUPPORTED": Fault(Scope.ABSENT, "this GPU has no such figure"),
    "NOT_FOUND": Fault(Scope.ABSENT, "there is no such thing on this GPU"),
    "NO_DATA": Fault(Scope.ABSENT, "the driver has no data for it"),
    "FUNCTION_NOT_FOUND": Fault(Scope.ABSENT, "this driver is too old to tell it"),
    "ARGUMENT_VERSION_MISMATCH": Fault(Scope.ABSENT, "this driver does not speak that version of the question"),
    "DEPRECATED": Fault(Scope.ABSENT, "this driver no longer answers that question"),
    "VGPU_ECC_NOT_SUPPORTED": Fault(Scope.ABSENT, "a virtual GPU with ECC has no such figure"),
    "FREQ_NOT_SUPPORTED": Fault(Scope.ABSENT, "this GPU has no such clock"),
    "RESET_TYPE_NOT_SUPPORTED": Fault(Scope.ABSENT, "this GPU has no such reset"),
}
"""By the name that follows NVML_ERROR_."""

NO_GPU = Fault(
    Scope.DRIVER, "NVML sees no GPU: normal in a container that was given none; the agents' own figures serve"
)


def unknown(code: int) -> Fault:
    """For a code that is newer than FAULTS: the GPU is passed over, and the code is told."""
    return Fault(Scope.DEVICE, f"NVML error {code}, which this gpufrag does not know: look it up in NVML's manual")
