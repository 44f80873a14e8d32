"""What a program asked of the allocator: operations that can be replayed under any settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MALLOC, FREE, AWAIT, COMPLETE, FAIL, EMPTY, RELEASE = range(7)


class Operation(NamedTuple):
    """One thing that the program did.

    kind: MALLOC; FREE (at once); AWAIT (a free that waits for other streams) and its COMPLETE; FAIL (a request
    that the recorded allocator refused); EMPTY (empty_cache: of everything, or of one private pool that is
    released); RELEASE (a private pool's owner is gone). `allocation` numbers the allocations of the program from
    0; size is bytes.
    """

    kind: int
    allocation: int
    size: int
    stream: int
    pool: tuple[int, int]


@dataclass(frozen=True)
class Program:
    """The operations behind a trace.

    `strangers` counts frees of blocks that were older than the trace. `inferred` counts flushes of which the trace
    does not say whether the program asked for them (empty_cache) or the allocator made them on its own.
    """

    operations: Sequence[Operation]
    allocations: int
    strangers: int = 0
    inferred: int = 0
