"""Rule files: all recording rules and alerts of a Config, as Prometheus and as its operator read them."""

from __future__ import annotations

from typing import Any

import yaml

from ..config.reader import check_keys
from . import health_alerts, memory_alerts, recording, texts
from .alert import Alert
from .config import Config, duration

Rule = dict[str, Any]
_WIDTH, _FOLDED = 118, 90
_HEADER = "# Made by `gpufrag mixin build`: change the options or exporter/gpufrag/mixin, not this file.\n"


SUBJECTS = {"memory": memory_alerts.ALERTS, "health": health_alerts.ALERTS}


def alerts(config: Config, subject: str) -> list[Alert]:
    """Those of one of SUBJECTS that are not switched off."""
    return [alert for alert in _made(config, subject) if alert.name not in config.off]


def names(config: Config) -> list[str]:
    """Of all alerts, those that are switched off included."""
    return [alert.name for subject in SUBJECTS for alert in _made(config, subject)]


def groups(config: Config) -> list[Rule]:
    """In the form of a rule file. Raises UsageError where `off` names an alert that is not there."""
    check_keys(config.off, names(config), "off")
    return [
        _group("gpufrag-ratios", config, _recorded(config, urgent=True)),
        _group("gpufrag-usage", config, _recorded(config, urgent=False), slower=2),
        *(
            _group(f"gpufrag-{name}", config, [_alert(config, row) for row in alerts(config, name)])
            for name in SUBJECTS
        ),
    ]


def rule_file(config: Config) -> str:
    """For rule_files in prometheus.yml."""
    return _HEADER + _yaml({"groups": groups(config)})


def prometheus_rule(config: Config) -> str:
    """For the Prometheus operator."""
    metadata: dict[str, Any] = {"name": "gpufrag"}
    if config.metadata_labels:
        metadata["labels"] = dict(sorted(config.metadata_labels.items()))
    return _HEADER + _yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": {"groups": groups(config)},
        }
    )


def _made(config: Config, subject: str) -> list[Alert]:
    return [make(config) for make in SUBJECTS[subject]]


def _recorded(config: Config, *, urgent: bool) -> list[Rule]:
    every = (*recording.rank_rules(config), *recording.job_rules(config))
    chosen = (rule for rule in every if (rule.record in recording.URGENT) is urgent)
    return [{"record": rule.record, "expr": rule.expr} for rule in chosen]


def _group(name: str, config: Config, rules: list[Rule], slower: int = 1) -> Rule:
    return {"name": name, "interval": duration(slower * config.timing.interval), "rules": rules}


def _alert(config: Config, alert: Alert) -> Rule:
    times = {"for": alert.hold, "keep_firing_for": alert.keep_firing}
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **{key: duration(seconds) for key, seconds in times.items() if seconds},
        "labels": {config.severity_label: config.severity(alert.severity), **alert.labels, **config.labels},
        "annotations": {
            "summary": alert.summary,
            "description": f"{texts.job(config)}: {alert.description}",
            "runbook_url": config.runbook(alert.name),
            **alert.annotations,
        },
    }


class _Dumper(yaml.SafeDumper):
    """Long texts are folded, not quoted: templates are full of braces and quotes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=">" if len(text) > _FOLDED else None)


_Dumper.add_representer(str, _text)


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
