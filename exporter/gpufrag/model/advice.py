"""The next step after a failed allocation: one line per cause, allocator and hardware."""

from __future__ import annotations

from typing import NamedTuple

from .facts import Facts


class Platform(NamedTuple):
    conf: str
    """The variable with the allocator's settings."""
    monitor: str
    """The tool that lists the device's processes."""
    module: str
    """The name below `torch`."""


PLATFORMS = {
    "cuda": Platform("PYTORCH_CUDA_ALLOC_CONF", "nvidia-smi", "cuda"),
    "hip": Platform("PYTORCH_HIP_ALLOC_CONF", "amd-smi (or rocm-smi)", "cuda"),
    "xpu": Platform("PYTORCH_ALLOC_CONF", "xpu-smi", "xpu"),
    "npu": Platform("PYTORCH_NPU_ALLOC_CONF", "npu-smi", "npu"),
    "": Platform("PYTORCH_ALLOC_CONF", "the device's monitor (nvidia-smi, amd-smi)", "cuda"),
}
_NEIGHBOURS = "find the processes on the device with {monitor}, and stop or move them"
_TORCH_EXPANDABLE = (
    "compare allocator settings with `gpufrag whatif` on a recorded trace, or try {conf}=expandable_segments:True"
)
_NO_EXPANDABLE = (
    "set {conf}=max_split_size_mb:128 (if the process has a memory limit, also garbage_collection_threshold:0.8), "
    "and keep tensor shapes from varying"
)
NEXT_STEPS = {
    ("fragmentation", "torch"): _TORCH_EXPANDABLE,
    ("fragmentation", "tensorflow"): "set TF_GPU_ALLOCATOR=cuda_malloc_async and restart; keep shapes from varying",
    ("fragmentation", "jax"): (
        "set TF_GPU_ALLOCATOR=cuda_malloc_async and restart, or raise XLA_PYTHON_CLIENT_MEM_FRACTION; "
        "pad inputs to few shapes"
    ),
    ("fragmentation", "mps"): "call torch.mps.empty_cache() between phases, and keep shapes from varying",
    ("capacity", "torch"): (
        "request less: smaller batch or sequence, activation checkpointing, sharding; no allocator setting helps"
    ),
    ("capacity", "tensorflow"): "request less: smaller batch, gradient checkpointing, mixed precision, sharding",
    ("capacity", "jax"): "request less: smaller batch, jax.checkpoint, donated arguments, sharding",
    ("capacity", "mps"): "request less: smaller batch or model; the CPU shares this memory",
    ("limit", "torch"): (
        "raise the process's limit (torch.{module}.set_per_process_memory_fraction, or per_process_memory_fraction "
        "in {conf}), or request less"
    ),
    ("limit", "tensorflow"): "raise per_process_gpu_memory_fraction or the logical device's memory_limit",
    ("limit", "jax"): "raise XLA_PYTHON_CLIENT_MEM_FRACTION: by default JAX takes three quarters of the device",
    ("limit", "mps"): (
        "request less, or raise PYTORCH_MPS_HIGH_WATERMARK_RATIO; the CPU shares this memory, so the machine may "
        "become unusable"
    ),
    ("neighbours", "torch"): _NEIGHBOURS,
    ("neighbours", "tensorflow"): _NEIGHBOURS,
    ("neighbours", "jax"): _NEIGHBOURS,
    ("neighbours", "mps"): "close other programs: they share this memory",
    ("unknown", "torch"): (
        "run the job under `gpufrag run` with the native allocator: its report of the next failure has every figure"
    ),
    ("unknown", "tensorflow"): "find the allocator's dump in the full log (warnings on): it lists every chunk",
    ("unknown", "jax"): "find the allocator's dump in the full log (TF_CPP_MIN_LOG_LEVEL=0): it lists every chunk",
    ("unknown", "mps"): "print torch.mps.driver_allocated_memory() just before the failing line",
}
"""By cause and allocator. OTHER_HARDWARE replaces what CUDA alone has."""
OTHER_HARDWARE = {
    ("fragmentation", "torch", "hip"): (
        "set {conf}=expandable_segments:True if this ROCm build supports it (it warns if not), else "
        "{conf}=max_split_size_mb:128 (if the process has a memory limit, also garbage_collection_threshold:0.8); "
        "keep tensor shapes from varying"
    ),
    ("fragmentation", "torch", "xpu"): (
        "keep tensor shapes from varying, and call torch.xpu.empty_cache() between phases"
    ),
    ("unknown", "torch", "xpu"): "print torch.xpu.memory_summary() just before the failing line",
    ("unknown", "torch", "npu"): "print torch.npu.memory_summary() just before the failing line",
    ("fragmentation", "tensorflow", "hip"): "keep tensor shapes from varying, and restart the process",
    ("fragmentation", "jax", "hip"): "raise XLA_PYTHON_CLIENT_MEM_FRACTION; pad inputs to few shapes",
}
DRIVER = (
    "find the processes on the device with {monitor}; if this process holds the memory, lower its memory fraction to "
    "leave room for the driver and libraries"
)
SEGMENT_TOO_SMALL = (
    "raise expandable_segments_reserve or expandable_segments_reserve_by_class in {conf}, or remove both: by default a "
    "segment can grow to 9/8 of the device"
)
EXPANDABLE_ALREADY = (
    "expandable segments are already on: make large allocations early and free short-lived tensors before them; "
    "`gpufrag explain` on a snapshot names the blocks that pin the free bytes"
)


def next_step(cause: str, facts: Facts) -> str:
    """Return the advice for a cause (a value of verdict.Cause) that fits the allocator, settings and hardware."""
    platform = facts.platform if facts.platform in PLATFORMS else ""
    if facts.allocator == "driver":
        text = DRIVER
    elif cause == "limit" and facts.segment_space is not None:
        text = SEGMENT_TOO_SMALL
    elif (cause, facts.allocator, facts.expandable) == ("fragmentation", "torch", True):
        text = EXPANDABLE_ALREADY
    elif (cause, facts.allocator, facts.expandable_supported) == ("fragmentation", "torch", False):
        text = f"this build has no expandable segments: {_NO_EXPANDABLE}"
    else:
        text = OTHER_HARDWARE.get((cause, facts.allocator, platform), NEXT_STEPS[cause, facts.allocator])
    return text.format_map(PLATFORMS[platform]._asdict())
