"""The Device dashboard: the driver's view of each GPU, who is on it, and how its free blocks are spread over sizes."""

from __future__ import annotations

from typing import Any

from ..config import Config
from .frame import DEVICE, Row, document
from .memory import MOMENT, Part
from .panels import AnyPanel, Face, Query, lines, number, sizes, stacked
from .selection import AT, RANK, Selection, of_jobs
from .tables import Column, rows

ABOUT = "The GPUs as their driver sees them, the processes on them, and the sizes of the free blocks inside those."


def build(config: Config) -> dict[str, Any]:
    s = Selection(config, (*of_jobs(config, single=False), RANK))
    return document(DEVICE, ABOUT, s, [_driver(s), _processes(s), _blocks(s)], extra=[AT])


def _driver(s: Selection) -> Row:
    size, free, used, reserved, others = (
        s.target(f"gpufrag_device_{name}_bytes")
        for name in ("memory_size", "memory_free", "memory_used", "memory_reserved", "other_processes_memory_used")
    )
    limits, on_each = s.config.thresholds, "max by (instance, uuid, device)"
    unknown = f"(sum({others}) or 0 * sum({used}))"
    held = [
        Part("processes with gpufrag", f"sum({used}) - {unknown}", "#3274D9"),
        Part("other processes", f"sum({others})", "#5F6773"),
        Part("kept by the driver", f"sum({reserved})", "#A0A7B4"),
        Part("free", f"sum({free})", "#3F7A45"),
    ]
    return Row(
        "The driver's view",
        [
            number(Face("Devices", "GPUs and MIG instances that are seen.", "short", 4, 4), Query(f"count({size})")),
            number(
                Face("Memory", "The size of all devices together, free or not.", "bytes", 4, 4, decimals=0),
                Query(f"sum({size})"),
            ),
            number(
                Face("Used", "Share of it that processes hold, whether tensors are in it or not.", "percentunit", 4, 4),
                Query(f"sum({used}) / sum({size})"),
            ),
            number(
                Face(
                    "Held by others",
                    "Memory of processes without an agent, on the device that has most of it: neighbours that no job "
                    "here can move. Absent where the driver does not show processes, as in most containers.",
                    "bytes", 6, 4, runbook=s.config.runbook("GpuMemoryForeignProcess"),
                ),
                Query(f"max({others})"),
                [limits.foreign_bytes],
            ),
            number(
                Face("Fullest device", "The device with the largest share of its memory held.", "percentunit", 6, 4),
                Query(f"topk(1, {on_each} ({used} / {size}))", "gpu {{device}} of {{instance}}"),
                [0.9, 0.98],
                name=True,
            ),
            stacked(
                Face(
                    "Who holds the devices",
                    "Over the devices shown. Memory of processes without an agent is told apart only where the driver "
                    "shows processes; elsewhere it counts as held by those with gpufrag.",
                    "bytes", 12,
                ),
                held,
            ),
            lines(
                Face(
                    "Used share by device",
                    "A device at 100 % gives nothing more: the next request has to be served from what the process "
                    "already holds.",
                    "percentunit", 12, decimals=0,
                ),
                Query(f"{on_each} ({used} / {size})", "gpu {{device}} of {{instance}}"),
            ),
            _table(s),
        ],
    )  # fmt: skip


def _table(s: Selection) -> AnyPanel:
    facts = ("instance", "device", "uuid", "name", "mig_profile", "driver_version")
    on_each = "max by (instance, uuid, device)"

    def of(name: str) -> str:
        return f"{on_each} ({s.target(f'gpufrag_device_{name}_bytes')})"

    return rows(
        Face(
            "Each device",
            "Each GPU, or each instance of a GPU that is cut up by MIG, with its driver; the most used first.",
            "bytes", 24, 6,
        ),
        *(Column(fact, label=fact) for fact in facts),
        Column("Size", of("memory_size"), decimals=0),
        Column("Used", of("memory_used")),
        Column("Free", of("memory_free")),
        Column("Other processes", of("other_processes_memory_used")),
        Column("", f"max by ({', '.join(facts)}) ({s.target('gpufrag_device_info')})"),
        sort="Used",
    )  # fmt: skip


def _processes(s: Selection) -> Row:
    by_rank, legend = f"max by ({s.config.by_job}, instance, rank, device)", f"rank {{{{rank}}}} of {s.job}"
    return Row(
        "The processes on them",
        [
            lines(
                Face(
                    "Device memory held by rank",
                    "All that the driver charges the process for: allocator, CUDA context, libraries. Absent where the "
                    "driver does not show processes, as in most containers.",
                    "bytes",
                ),
                Query(f"{by_rank} ({s.series('gpufrag_process_device_memory_used_bytes')})", legend),
            ),
            lines(
                Face(
                    "Held outside the allocator by rank",
                    "CUDA context, NCCL buffers, cuBLAS workspaces. It does not shrink when tensors are freed; a rank "
                    "with much more than the rest has loaded more libraries or made more communicators.",
                    "bytes",
                ),
                Query(f"{by_rank} ({s.series('gpufrag_process_context_memory_bytes')})", legend),
            ),
        ],
    )  # fmt: skip


def _blocks(s: Selection) -> Row:
    def spread(pool: str, about: str) -> AnyPanel:
        buckets = s.series("gpufrag_allocator_free_block_size_bytes_bucket", MOMENT, f'pool="{pool}"')
        title = f"Free blocks by size, {pool} requests"
        return sizes(Face(title, about, "bytes", 12, 9), Query(f"sum by (le) ({buckets})", "{{le}}"))

    total, pieces = (s.series(f"gpufrag_allocator_free_block_size_bytes_{end}", MOMENT) for end in ("gsum", "gcount"))
    blocks, segments = (s.series(f"gpufrag_allocator_{what}", MOMENT) for what in ("blocks", "segments"))
    by_rank, legend = f"sum by ({s.config.by_job}, instance, rank, device)", f"rank {{{{rank}}}} of {s.job}"
    return Row(
        "The free blocks inside them",
        [
            spread(
                "large",
                "How many free blocks there are of each size, over the ranks shown, in the pool that serves requests "
                "above 1 MiB. A healthy heap has few and large ones; a band that spreads downwards over hours is a "
                "heap that falls to pieces.",
            ),
            spread(
                "small",
                "The same for requests up to 1 MiB. Many small blocks are normal here, and cost little.",
            ),
            lines(
                Face(
                    "Mean free block by rank",
                    "Free bytes divided by the number of pieces that they are in. It falls as a heap fragments.",
                    "bytes", 8,
                ),
                Query(f"{by_rank} ({total}) / {by_rank} ({pieces})", legend),
            ),
            lines(
                Face(
                    "Blocks by state",
                    "allocated: in use. free: kept for later. awaiting_free: freed, but a stream still uses it; many "
                    "of them for long means that a stream is behind.",
                    "short", 8, decimals=0,
                ),
                Query(f"sum by (state) ({blocks})", "{{state}}"),
            ),
            lines(
                Face(
                    "Segments by rank",
                    "Pieces of memory that the allocator took from the driver. More of them at the same load means "
                    "that old ones do not fit new requests.",
                    "short", 8, decimals=0,
                ),
                Query(f"{by_rank} ({segments})", legend),
            ),
        ],
    )  # fmt: skip
