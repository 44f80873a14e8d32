"""Which series a panel reads: metrics selected by the variables of a dashboard, and the parts of a rank's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...metrics import names
from ...metrics.names import Label
from ..config import Config
from ..recording import WITHOUT_POOL


class Variable(NamedTuple):
    """A dashboard variable with the values of a label."""

    label: str
    title: str
    all_value: str = ".*"
    """What All selects: `.*` includes series without the label."""
    single: bool = False
    """Whether it has one value at a time. If no series has the label it is empty, which matches its absence."""


_TITLES = {"cluster": "Cluster", Label.NAMESPACE: "Namespace", "job": "Job", Label.JOB_NAME: "Training job"}
INSTANCE = Variable(Label.INSTANCE, "Instance", ".+")
RANK = Variable(Label.RANK, "Rank")
AT = Variable(Label.AT, "Moment", single=True)
"""Not part of Selection.series: only metrics of a snapshot have it."""
MOMENT = f'{Label.AT}=~"${Label.AT}"'
BY_RANK, RANK_NAME = f"by ({Label.RANK}, {Label.DEVICE})", f"rank {{{{{Label.RANK}}}}}, gpu {{{{{Label.DEVICE}}}}}"
"""Within one job: grouping by rank and device, and its legend."""


@dataclass(frozen=True)
class Selection:
    """The variables of one dashboard, and metrics selected by them."""

    config: Config
    variables: tuple[Variable, ...]

    @property
    def job(self) -> str:
        """The legend of a job: its labels, the most specific first."""
        return " ".join(f"{{{{{label}}}}}" for label in reversed(self.config.job_labels))

    @property
    def rank_of_job(self) -> str:
        return f"rank {{{{{Label.RANK}}}}} of {self.job}"

    @property
    def ooms_by_cause(self) -> str:
        return f"sum by ({Label.CAUSE}) (increase({self.series(names.OOM_CAUSES)}[$__rate_interval]))"

    def series(self, metric: str, *matchers: str) -> str:
        """A metric of ranks: every variable applies."""
        return self.config.series(metric, *_matchers(self.variables), *matchers)

    def rule(self, record: str, *matchers: str) -> str:
        """A `job:` rule or ALERTS: only the variables of job labels apply."""
        named = [variable for variable in self.variables if variable.label in self.config.job_labels]
        return self.config.rule(record, *_matchers(named), *matchers)

    def target(self, metric: str, *matchers: str) -> str:
        """A metric of a sidecar or a device: every variable but the rank applies."""
        shared = [variable for variable in self.variables if variable is not RANK]
        return self.config.series(metric, *_matchers(shared), *matchers)


def _matchers(variables: Sequence[Variable]) -> list[str]:
    return [f'{variable.label}=~"${variable.label}"' for variable in variables]


def of_jobs(config: Config, *, single: bool) -> tuple[Variable, ...]:
    """Return variables for the labels of a job, `job` and `instance`.

    `single` is for a dashboard of one job: variables hold one value, except `job` and `instance`.
    """
    labels = dict.fromkeys([*config.job_labels, "job"])
    jobs = [Variable(label, _TITLES.get(label, label), single=single) for label in labels if label != "job"]
    return (*jobs, Variable("job", _TITLES["job"], ".+"), INSTANCE)


class Part(NamedTuple):
    name: str
    expr: str
    colour: str


def memory_parts(selection: Selection, by: str) -> Iterator[Part]:
    """Yield parts that add up to reserved + headroom + memory of other processes, as `sum by (by)`.

    All parts inside the allocator are from one snapshot, except internal waste, which has no snapshot: it is taken
    from the part in use, so the sum is exact. Differences are built per allocator before they are summed, because not
    every allocator reports every figure. Headroom is free_total - stranded - reclaimable, since its series is detail.
    """

    def series(metric: str) -> str:
        return selection.series(metric, MOMENT)

    def over_pools(expr: str) -> str:
        return f"sum {WITHOUT_POOL} ({expr})"

    stranded, reclaimable = series(names.STRANDED), series(names.RECLAIMABLE)
    waste = over_pools(f"{selection.series(names.ACTIVE)} - {selection.series(names.REQUESTED)}")
    awaiting = over_pools(f"{stranded} + {reclaimable} - {series(names.FREE_CACHED)}")
    in_use = f"{series(names.SNAPSHOT_ACTIVE)} - {awaiting} - ignoring ({Label.AT}) group_left () {waste}"
    free = f"{series(names.FREE_TOTAL)} - {over_pools(f'{stranded} + {reclaimable}')}"
    parts = (
        ("in use", f"sum by ({by}) ({in_use})", "#3274D9"),
        ("internal waste", f"sum by ({by}) ({waste})", "#8F3BB8"),
        ("stranded", f"sum by ({by}) ({stranded})", "#C4162A"),
        ("reclaimable", f"sum by ({by}) ({reclaimable})", "#F2CC0C"),
        ("captive", f"sum by ({by}) ({series(names.CAPTIVE)})", "#FF780A"),
        ("context", f"sum by ({by}) ({selection.series(names.PROCESS_CONTEXT)})", "#A0A7B4"),
        ("others", _others(selection, by), "#5F6773"),
        ("free", f"sum by ({by}) ({free})", "#3F7A45"),
    )
    return (Part(*part) for part in parts)


def _others(selection: Selection, by: str) -> str:
    """What the device holds beyond these ranks. It includes the context where the driver does not show processes."""
    used, info = selection.target(names.DEVICE_USED), selection.series(names.PROCESS_INFO)
    # device metrics have the uuid of the MIG instance, where there is one
    with_uuid = f'label_replace({info}, "{Label.UUID}", "$1", "{Label.MIG_UUID}", "(.+)")'
    on_device = f"sum by ({by}) ({used} * on ({Label.INSTANCE}, {Label.UUID}) group_right () {with_uuid})"
    reserved = f"sum by ({by}) ({selection.series(names.RESERVED)})"
    context = f"sum by ({by}) ({selection.series(names.PROCESS_CONTEXT)})"
    return f"clamp_min({on_device} - {reserved} - ({context} or 0 * {reserved}), 0)"


MEMORY_PARTS = (
    "in use: memory of tensors. internal waste: rounding, and blocks larger than their request. stranded: free, but "
    "pinned between blocks in use; this is lost to fragmentation. reclaimable: free, and returned by torch before it "
    "raises an out-of-memory error. captive: free inside CUDA graphs and private pools. context: CUDA, NCCL and "
    "libraries. others: other processes on the device (and the context, if the driver does not show processes). free: "
    "what the job can still use. The variable Moment selects the snapshots: at the end of a step, at its peak, or by "
    "timer."
)
