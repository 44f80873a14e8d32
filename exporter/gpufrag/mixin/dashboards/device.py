"""The Device dashboard: the driver's figures of each GPU, the processes on it, and the sizes of their free blocks."""

from __future__ import annotations

from typing import Any

from ...metrics import names
from ...metrics.names import AlertName, Label
from ..config import Config
from .document import DEVICE, Row, document
from .panels import AnyPanel, Column, Face, Query, lines, number, rows, sizes, stacked
from .queries import AT, MOMENT, RANK, Part, Selection, of_jobs

ABOUT = "The GPUs as the driver reports them, the processes on them, and the sizes of their free blocks."
ON_EACH = f"max by ({Label.INSTANCE}, {Label.UUID}, {Label.DEVICE})"
DEVICE_NAME = f"gpu {{{{{Label.DEVICE}}}}} of {{{{{Label.INSTANCE}}}}}"


def build(config: Config) -> dict[str, Any]:
    s = Selection(config, (*of_jobs(config, single=False), RANK))
    return document(DEVICE, ABOUT, s, [_devices(s), _processes(s), _blocks(s)], extra=[AT])


def _devices(s: Selection) -> Row:
    size, free, used, reserved, others = map(
        s.target,
        (names.DEVICE_SIZE, names.DEVICE_FREE, names.DEVICE_USED, names.DEVICE_RESERVED, names.DEVICE_OTHERS_USED),
    )
    held = [
        Part("processes with gpufrag", f"sum({used}) - (sum({others}) or 0 * sum({used}))", "#3274D9"),
        Part("other processes", f"sum({others})", "#5F6773"),
        Part("reserved by the driver", f"sum({reserved})", "#A0A7B4"),
        Part("free", f"sum({free})", "#3F7A45"),
    ]
    return Row(
        "Devices",
        [
            number(Face("Devices", "Number of GPUs and MIG instances.", "short", 4, 4), Query(f"count({size})")),
            number(
                Face("Memory", "Memory size of all devices together.", "bytes", 4, 4, decimals=0),
                Query(f"sum({size})"),
            ),
            number(
                Face("Used", "Share of the memory held by processes.", "percentunit", 4, 4),
                Query(f"sum({used}) / sum({size})"),
            ),
            number(
                Face("Held by other processes",
                    "Memory of processes without an agent, on the device with the most of it. Absent where the driver "
                    "does not show processes, as in most containers.",
                    "bytes", 6, 4, runbook=s.config.runbook(AlertName.FOREIGN_PROCESS)),
                Query(f"max({others})"),
                [s.config.thresholds.foreign_bytes],
            ),
            number(
                Face("Fullest device", "The device with the largest used share.", "percentunit", 6, 4),
                Query(f"topk(1, {ON_EACH} ({used} / {size}))", DEVICE_NAME),
                [0.9, 0.98],
                name=True,
            ),
            stacked(
                Face("Device memory by holder",
                    "Sum over the selected devices. Where the driver does not show processes, \"processes with "
                    "gpufrag\" includes the others.",
                    "bytes", 12),
                held,
            ),
            lines(
                Face("Used share by device",
                    "At 100 % the driver has nothing left: the allocator must serve the next request from its cache.",
                    "percentunit", 12, decimals=0),
                Query(f"{ON_EACH} ({used} / {size})", DEVICE_NAME),
            ),
            _table(s),
        ],
    )  # fmt: skip


def _table(s: Selection) -> AnyPanel:
    facts = (Label.INSTANCE, Label.DEVICE, Label.UUID, Label.NAME, Label.MIG_PROFILE, Label.DRIVER_VERSION)

    def of(metric: str) -> str:
        return f"{ON_EACH} ({s.target(metric)})"

    return rows(
        Face("Each device", "GPUs and MIG instances, the most used first.", "bytes", 24, 6),
        *(Column(fact, label=fact) for fact in facts),
        Column("Size", of(names.DEVICE_SIZE), decimals=0),
        Column("Used", of(names.DEVICE_USED)),
        Column("Free", of(names.DEVICE_FREE)),
        Column("Other processes", of(names.DEVICE_OTHERS_USED)),
        Column("", f"max by ({', '.join(facts)}) ({s.target(names.DEVICE_INFO)})"),
        sort="Used",
    )


def _on_rank(s: Selection) -> str:
    return f"by ({s.config.by_job}, {Label.INSTANCE}, {Label.RANK}, {Label.DEVICE})"


def _processes(s: Selection) -> Row:
    return Row(
        "Processes",
        [
            lines(
                Face("Device memory by rank",
                    "As reported by the driver: allocator, CUDA context and libraries. Absent where the driver does "
                    "not show processes, as in most containers.",
                    "bytes"),
                Query(f"max {_on_rank(s)} ({s.series(names.PROCESS_DEVICE_USED)})", s.rank_of_job),
            ),
            lines(
                Face("Memory outside the allocator by rank",
                    "CUDA context and NCCL buffers. It does not shrink when tensors are freed. A rank "
                    "with much more than the others loaded more libraries or created more communicators.",
                    "bytes"),
                Query(f"max {_on_rank(s)} ({s.series(names.PROCESS_CONTEXT)})", s.rank_of_job),
            ),
        ],
    )  # fmt: skip


def _blocks(s: Selection) -> Row:
    def spread(pool: str, about: str) -> AnyPanel:
        buckets = s.series(f"{names.FREE_BLOCK_SIZE}_bucket", MOMENT, f'{Label.POOL}="{pool}"')
        return sizes(
            Face(f"Free blocks by size, {pool} pool", about, "bytes", 12, 9),
            Query(f"sum by (le) ({buckets})", "{{le}}"),
        )

    total, count, blocks, segments = (
        s.series(name, MOMENT)
        for name in (f"{names.FREE_BLOCK_SIZE}_gsum", f"{names.FREE_BLOCK_SIZE}_gcount", names.BLOCKS, names.SEGMENTS)
    )
    by_rank = f"sum {_on_rank(s)}"
    return Row(
        "Free blocks",
        [
            spread(
                "large",
                "Number of free blocks by size, over the selected ranks, for requests above 1 MiB. A healthy heap has "
                "few, large blocks. A band that spreads to smaller sizes over hours is fragmentation.",
            ),
            spread("small", "Number of free blocks by size, for requests up to 1 MiB. Many small blocks are normal."),
            lines(
                Face("Mean free block by rank",
                    "Free bytes divided by the number of free blocks. It falls as the heap fragments.",
                    "bytes", 8),
                Query(f"{by_rank} ({total}) / {by_rank} ({count})", s.rank_of_job),
            ),
            lines(
                Face("Blocks by state",
                    "allocated: in use. free: cached. awaiting_free: freed, but another stream still uses them. If "
                    "many blocks stay in this state, a stream is slow.",
                    "short", 8, decimals=0),
                Query(f"sum by ({Label.STATE}) ({blocks})", f"{{{{{Label.STATE}}}}}"),
            ),
            lines(
                Face("Segments by rank",
                    "Driver allocations that the allocator holds. If they increase at the same load, old segments do "
                    "not fit new requests.",
                    "short", 8, decimals=0),
                Query(f"{by_rank} ({segments})", s.rank_of_job),
            ),
        ],
    )  # fmt: skip
