"""What to do next about a failed request: by its cause and whose allocator it was, one line to act on."""

from __future__ import annotations

NEXT_STEPS = {
    ("fragmentation", "torch"): (
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and restart; "
        "`gpufrag whatif` tells from a recorded trace which setting helps most"
    ),
    ("fragmentation", "tensorflow"): "set TF_GPU_ALLOCATOR=cuda_malloc_async and restart; keep shapes from varying",
    ("fragmentation", "jax"): (
        "set TF_GPU_ALLOCATOR=cuda_malloc_async and restart, or raise XLA_PYTHON_CLIENT_MEM_FRACTION; "
        "pad inputs to few shapes"
    ),
    ("capacity", "torch"): (
        "ask for less: a smaller batch or sequence, activation checkpointing, sharding; no allocator setting will help"
    ),
    ("capacity", "tensorflow"): "ask for less: a smaller batch, gradient checkpointing, mixed precision, sharding",
    ("capacity", "jax"): "ask for less: a smaller batch, jax.checkpoint, donated arguments, sharding",
    ("limit", "torch"): (
        "raise the process's limit (torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction "
        "in PYTORCH_CUDA_ALLOC_CONF), or ask for less"
    ),
    ("limit", "tensorflow"): "raise per_process_gpu_memory_fraction or the logical device's memory_limit",
    ("limit", "jax"): "raise XLA_PYTHON_CLIENT_MEM_FRACTION: by default JAX takes three quarters of the device",
    ("neighbours", "torch"): "see with nvidia-smi which processes hold the device, and end or move them",
    ("neighbours", "tensorflow"): "see with nvidia-smi which processes hold the device, and end or move them",
    ("neighbours", "jax"): "see with nvidia-smi which processes hold the device, and end or move them",
    ("fragmentation", "mps"): "call torch.mps.empty_cache() between phases, and keep shapes from varying",
    ("capacity", "mps"): "ask for less: a smaller batch or model; the memory is the whole machine's",
    ("limit", "mps"): (
        "ask for less, or raise PYTORCH_MPS_HIGH_WATERMARK_RATIO: the memory is the whole machine's, "
        "which may become unusable"
    ),
    ("neighbours", "mps"): "end other programs: the memory is the whole machine's",
    ("unknown", "mps"): "see torch.mps.driver_allocated_memory() just before the failing line",
    ("unknown", "torch"): (
        "run the job under `gpufrag run`, on the native allocator: its report of the next fault has every figure"
    ),
    ("unknown", "tensorflow"): "find the allocator's dump in the full log (warnings on): it lists every chunk",
    ("unknown", "jax"): "find the allocator's dump in the full log (TF_CPP_MIN_LOG_LEVEL=0): it lists every chunk",
}
"""One for each pair."""
EXPANDABLE_ALREADY = (
    "expandable segments are on already: make large requests early and free short-lived tensors before them; "
    "`gpufrag measure` on a snapshot shows what pins the free bytes"
)


def next_step(cause: str, allocator: str, expandable: bool | None = None) -> str:
    """`expandable` is whether torch's expandable segments were on: they are not advised twice."""
    if (cause, allocator, expandable) == ("fragmentation", "torch", True):
        return EXPANDABLE_ALREADY
    return NEXT_STEPS[cause, allocator]
