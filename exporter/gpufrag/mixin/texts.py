"""Pieces of alert texts: Prometheus' templates, written from queries so that a text can name the worst rank.

An alert is one a job and must not change its labels while it fires; so the rank that is worst just now stands in
its text, looked up when the text is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from .config import Config, duration

JOB = "<job>"
"""In a query of `lookup` or `each`: the matchers of the alert's job."""
RANK, DEVICE, MOMENT = "<rank>", "<device>", "<moment>"
"""In a query of `figure`: the matchers of the rank that `lookup` found, of its device, of its moment."""
_RANK_LABELS = ("instance", "rank", "process")
_DEVICE_LABELS = (*_RANK_LABELS, "device", "framework")
_PLACES = {RANK: _RANK_LABELS, DEVICE: _DEVICE_LABELS, MOMENT: (*_DEVICE_LABELS, "at")}

WHERE = (
    "rank {{ or .Labels.rank .Labels.process }}{{ with .Labels.device }}, device {{ . }}{{ end }}"
    "{{ with .Labels.pod }}, pod {{ . }}{{ end }}{{ with .Labels.instance }}, {{ . }}{{ end }}"
    "{{ with .Labels.at }} (at: {{ . }}){{ end }}"
)
"""Inside `lookup`: what was found, in words."""


def job(config: Config) -> str:
    """The job by the narrowest of its labels that it has; an alert carries the others beside its text."""
    labels = " ".join(f"$labels.{label}" for label in reversed(config.job_labels))
    return f"Job {{{{ or {labels} }}}}" if len(config.job_labels) > 1 else f"Job {{{{ {labels} }}}}"


def lookup(config: Config, query: str, then: str) -> str:
    """`then`, with the first series of `query` as its dot; nothing where the query finds none."""
    asked = _ask(query, JOB, config.job_labels, "$labels")
    return f"{{{{ with {asked} }}}}{{{{ with first . }}}}{then}{{{{ end }}}}{{{{ end }}}}"


def each(config: Config, query: str, then: str) -> str:
    """`then` for every series of `query`."""
    return f"{{{{ range {_ask(query, JOB, config.job_labels, '$labels')} }}}}{then}{{{{ end }}}}"


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
    """Inside `lookup`: the bytes of `metric` at the place that was found, in human units, between `before` and `after`.

    `over` says which of the window: its "last" value (a pod that has just gone is still named with its figures), its
    "min" or "max". It is the one that the alert goes by, or the text contradicts itself. Nothing where there is none
    or where it fails the comparison `only`.
    """
    chosen = f"{metric}{{{', '.join((place, *matchers))}}}[{duration(config.timing.window)}]"
    asked = _ask(f"max({over}_over_time({chosen})){only}", place, (*config.job_labels, *_PLACES[place]), ".Labels")
    return f"{{{{ with {asked} }}}}{before}{{{{ first . | value | humanize1024 }}}}B{after}{{{{ end }}}}"


def value(form: str) -> str:
    """The alert's own value."""
    return f"{{{{ $value | {form} }}}}"


def _ask(query: str, place: str, labels: Sequence[str], source: str) -> str:
    """%[n]q quotes a label's value as PromQL wants it, whatever is in it; a % of the query is one for printf too."""
    matchers = ", ".join(f"{label}=%[{number}]q" for number, label in enumerate(labels, 1))
    values = " ".join(f"{source}.{label}" for label in labels)
    template = query.replace("%", "%%").replace(place, matchers)
    return f"printf `{template}` {values} | query"
