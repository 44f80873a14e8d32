"""Which series a panel reads: the matchers that tie a metric to the variables of its dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..config import Config


class Variable(NamedTuple):
    """A dashboard variable over the values of a label."""

    label: str
    title: str
    all_value: str = ".*"
    """What All stands for: `.*` also takes the series that lack the label."""
    single: bool = False
    """One value at a time. Where no series has the label it is empty, which again matches its absence."""


_TITLES = {"cluster": "Cluster", "namespace": "Namespace", "job": "Job", "job_name": "Training job"}
INSTANCE = Variable("instance", "Instance", ".+")
RANK = Variable("rank", "Rank")
AT = Variable("at", "Moment", single=True)
"""Matched by hand: only what comes from a snapshot has it."""
BY_RANK, RANK_NAME = "by (rank, device)", "rank {{rank}}, gpu {{device}}"
"""Of one job: a series a rank and device, and its legend."""


@dataclass(frozen=True)
class Selection:
    """The variables of one dashboard, and metrics selected by them."""

    config: Config
    variables: tuple[Variable, ...]

    @property
    def job(self) -> str:
        """In a legend: what names the job, the most telling label first; one that is not set is nothing."""
        return " ".join(f"{{{{{label}}}}}" for label in reversed(self.config.job_labels))

    def series(self, metric: str, *matchers: str) -> str:
        """A metric of ranks: every variable applies."""
        return self.config.series(metric, *_chosen(self.variables), *matchers)

    def rule(self, record: str, *matchers: str) -> str:
        """A `job:` recording rule, or ALERTS: only what names a job is on it."""
        named = [variable for variable in self.variables if variable.label in self.config.job_labels]
        return self.config.rule(record, *_chosen(named), *matchers)

    def target(self, metric: str, *matchers: str) -> str:
        """A metric of a sidecar or of a device, which belong to no rank."""
        shared = [variable for variable in self.variables if variable is not RANK]
        return self.config.series(metric, *_chosen(shared), *matchers)


def _chosen(variables: Sequence[Variable]) -> list[str]:
    return [f'{variable.label}=~"${variable.label}"' for variable in variables]


def of_jobs(config: Config, *, single: bool) -> tuple[Variable, ...]:
    """Variables for the labels that name a job, and `job` and `instance`, which every scrape has.

    `single` makes all but those two hold one value, for a dashboard that shows one job.
    """
    labels = dict.fromkeys([*config.job_labels, "job"])
    jobs = [Variable(label, _TITLES.get(label, label), single=single) for label in labels if label != "job"]
    return (*jobs, Variable("job", _TITLES["job"], ".+"), INSTANCE)
