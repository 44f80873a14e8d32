"""What a process can know of its devices' names without a question to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .sources import DeviceFacts

DRIVER_VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_UUID = len("GPU-00000000-0000-0000-0000-000000000000")


def named(
    backend: str,
    device: int,
    environment: Mapping[str, str],
    told: str | None = None,
    version_files: Sequence[Path] = DRIVER_VERSION_FILES,
) -> DeviceFacts:
    """`told` is the UUID as the framework has it; without it, the variables that hide devices may name it."""
    visible = _visible(environment, device)
    mig = visible if visible.startswith("MIG-") else None
    uuid = _gpu_uuid(told) if told else visible if len(visible) == _UUID and not mig else None
    return DeviceFacts(
        backend=backend,
        uuid=None if uuid and mig and uuid.removeprefix("GPU-") in mig else uuid,  # that is the slice, not its GPU
        mig_uuid=mig,
        driver_version=next((text for file in version_files if (text := _first_line(file))), None),
    )


def _visible(environment: Mapping[str, str], device: int) -> str:
    """The device's entry in the first variable that is set; empty where it has none."""
    entries = next((text for name in VISIBLE if (text := environment.get(name))), "").split(",")
    return entries[device].strip() if device < len(entries) else ""


def _gpu_uuid(text: str) -> str:
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _first_line(file: Path) -> str:
    try:
        return file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""
