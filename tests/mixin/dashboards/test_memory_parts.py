"""Where the memory is: parts of one allocator, whatever another one in the same process leaves unsaid."""

import pytest
from gpufrag.mixin.dashboards.selection import RANK, Selection, of_jobs

from gpufrag.mixin.config import Config
from gpufrag.mixin.dashboards import memory
from mixin.dashboards.grafana import fill
from promtool import device

ANY = dict.fromkeys(("cluster", "namespace", "job_name", "job", "instance", "rank", "at"), ".*")
POOLS = {
    # name: (large pool, small pool), bytes
    "active": (60, 2),
    "requested": (50, 1),
    "free_cached": (25, 2),
    "stranded": (20, 1),
    "reclaimable": (8, 1),
}
OF_A_SNAPSHOT = ("free_cached", "stranded", "reclaimable")
IN_USE, WASTE, STRANDED, RECLAIMABLE, HEADROOM = 62 - 3 - 11, 11, 21, 9, 40
"""Of the active bytes, three wait for a stream."""


def torch():
    series = [
        device(f"gpufrag_allocator_{name}_bytes", value, pool=pool, at="timer" if name in OF_A_SNAPSHOT else "")
        for name, values in POOLS.items()
        for pool, value in zip(("large", "small"), values)
    ]
    series.append(device("gpufrag_snapshot_active_bytes", 62, at="timer"))
    free = STRANDED + RECLAIMABLE + HEADROOM
    return [*series, device("gpufrag_allocator_free_total_bytes", free, at="timer")]


def jax():
    """It tells no request as it was made, and takes no snapshot."""
    lone = device("gpufrag_allocator_active_bytes", 500, framework="jax")
    figures = {"free_cached": 300, "free_total": 300, "largest_allocatable": 100}
    clocked = [device(f"gpufrag_allocator_{n}_bytes", v, at="timer", framework="jax") for n, v in figures.items()]
    return [lone, *clocked]


@pytest.mark.real
@pytest.mark.parametrize("beside", [[], jax()], ids=["alone", "beside JAX"])
@pytest.mark.parametrize("by", ["rank", ""])
def test_parts_of_an_allocator_are_its_own(judge, by, beside):
    config = Config()
    selection = Selection(config, (*of_jobs(config, single=True), RANK))
    parts = {part.name: part.expr for part in memory.parts(selection, by)}
    sizes = {
        "in use": IN_USE,
        "internal waste": WASTE,
        "stranded": STRANDED,
        "reclaimable": RECLAIMABLE,
        "free": HEADROOM,
    }
    labels = '{rank="0"}' if by else "{}"
    tests = [
        {"expr": fill(parts[name], ANY), "eval_time": "5m", "exp_samples": [{"labels": labels, "value": size}]}
        for name, size in sizes.items()
    ]
    judge.ask({"input_series": [*torch(), *beside], "promql_expr_test": tests})
