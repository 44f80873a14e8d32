"""Alert descriptions as Prometheus templates, with queries that find the worst rank.

An alert is one per job, and its labels must not change while it fires. So its description looks up the rank that is
worst at the moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics import names
from ..metrics.names import Label
from .config import Config, duration

JOB = "<job>"
"""In a query of `lookup` or `each`: replaced by the matchers of the alert's job."""
RANK, DEVICE, MOMENT = "<rank>", "<device>", "<moment>"
"""In a query of `figure`: replaced by the matchers of the rank that `lookup` found, of its device, of its moment."""
_RANK_LABELS = (Label.INSTANCE, Label.RANK, Label.PROCESS)
_DEVICE_LABELS = (*_RANK_LABELS, Label.DEVICE, Label.FRAMEWORK)
_PLACES = {RANK: _RANK_LABELS, DEVICE: _DEVICE_LABELS, MOMENT: (*_DEVICE_LABELS, Label.AT)}

WHERE = (
    f" ({{{{ with .Labels.{Label.RANK} }}}}rank {{{{ . }}}}"
    f"{{{{ else }}}}process {{{{ .Labels.{Label.PROCESS} }}}}{{{{ end }}}}"
    + "".join(
        f"{{{{ with .Labels.{label} }}}}, {title}{{{{ . }}}}{{{{ end }}}}"
        for label, title in ((Label.DEVICE, "device "), (Label.POD, "pod "), (Label.INSTANCE, ""), (Label.AT, "at "))
    )
    + ")"
)
"""Inside `lookup`: the series that was found, as ` (rank 3, device 3, pod llm-3, 10.0.0.1:9836, at peak)`."""


def job(config: Config) -> str:
    """Return the template for `Job NAME`, by the most specific job label that is set."""
    labels = " ".join(f"$labels.{label}" for label in reversed(config.job_labels))
    return f"Job {{{{ or {labels} }}}}" if len(config.job_labels) > 1 else f"Job {{{{ {labels} }}}}"


def lookup(config: Config, query: str, then: str) -> str:
    """Return the template `then` with the first series of `query` as its dot; empty if the query finds none."""
    found = _query(query, JOB, config.job_labels, "$labels")
    return f"{{{{ with {found} }}}}{{{{ with first . }}}}{then}{{{{ end }}}}{{{{ end }}}}"


def sidecar_runbook(config: Config, alert: str) -> str:
    """Return the template of the address where a sidecar serves a runbook: of the alert's job, or any other."""
    first = f"{{{{ with first . }}}}http://{{{{ .Labels.{Label.INSTANCE} }}}}/runbooks/{alert}{{{{ end }}}}"
    any_job = f"query `{config.series(names.BUILD_INFO)}`"
    own = _query(config.series(names.BUILD_INFO, JOB), JOB, config.job_labels, "$labels")
    return f"{{{{ with {own} }}}}{first}{{{{ else }}}}{{{{ with {any_job} }}}}{first}{{{{ end }}}}{{{{ end }}}}"


def each(config: Config, query: str, then: str) -> str:
    """Return the template `then`, repeated for every series of `query`."""
    return f"{{{{ range {_query(query, JOB, config.job_labels, '$labels')} }}}}{then}{{{{ end }}}}"


def figure(
    config: Config,
    metric: str,
    place: str,
    *matchers: str,
    over: str = "last",
    only: str = "",
    before: str = "",
    after: str = "",
) -> str:
    """Return the template, for use inside `lookup`, of `metric` in human units between `before` and `after`.

    `over` is the aggregation over the window: "last", "min" or "max"; use the one of the alert's expression. The
    template is empty where there is no value, or where it fails the comparison `only`.
    """
    chosen = f"{metric}{{{', '.join((place, *matchers))}}}[{duration(config.timing.window)}]"
    found = _query(f"max({over}_over_time({chosen})){only}", place, (*config.job_labels, *_PLACES[place]), ".Labels")
    return f"{{{{ with {found} }}}}{before}{{{{ first . | value | humanize1024 }}}}B{after}{{{{ end }}}}"


def value(form: str) -> str:
    return f"{{{{ $value | {form} }}}}"


def _query(query: str, place: str, labels: Sequence[str], source: str) -> str:
    """%[n]q quotes a label value as PromQL requires; a literal % is doubled for printf."""
    matchers = ", ".join(f"{label}=%[{number}]q" for number, label in enumerate(labels, 1))
    values = " ".join(f"{source}.{label}" for label in labels)
    template = query.replace("%", "%%").replace(place, matchers)
    return f"printf `{template}` {values} | query"
