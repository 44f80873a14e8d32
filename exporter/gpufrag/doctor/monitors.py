"""Whether a PodMonitor selects a pod's port. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..restarter.kubernetes.cluster import Owner

Labels = Mapping[str, str]


def selects(monitor: Owner, pod: Owner, ports: tuple[str, ...]) -> bool:
    """By namespace, labels and the name of a port, as the operator does."""
    endpoints = monitor.spec.get("podMetricsEndpoints") or ()
    return (
        _in_namespace(monitor, pod.namespace)
        and matches(monitor.spec.get("selector") or {}, pod.labels)
        and any(endpoint.get("port") in ports for endpoint in endpoints)
    )


def _in_namespace(monitor: Owner, namespace: str) -> bool:
    chosen = monitor.spec.get("namespaceSelector") or {}
    return bool(chosen.get("any")) or namespace in (chosen.get("matchNames") or [monitor.namespace])


def matches(selector: Mapping[str, Any], labels: Labels) -> bool:
    """A LabelSelector; an empty one selects everything."""
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _OPERATORS[one["operator"]](labels.get(one["key"]), one.get("values") or ())
        for one in selector.get("matchExpressions") or ()
    )


_OPERATORS: Mapping[str, Callable[[str | None, Any], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
}
