"""All files that a Config makes, by their path in the output folder."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import Unavailable
from . import dashboards, rules
from .config import Config

RULES, OPERATOR, DASHBOARDS = "rules.yaml", "prometheusrule.yaml", "grafana"


def rule_files(config: Config) -> dict[str, str]:
    """For Prometheus itself, and for its operator."""
    return {RULES: rules.rule_file(config), OPERATOR: rules.prometheus_rule(config)}


def dashboard_files(config: Config) -> dict[str, str]:
    """Raises Unavailable where the library that knows Grafana's JSON is not installed."""
    built = dashboards.build(config)
    return {f"{DASHBOARDS}/{name}": json.dumps(made, indent=2, sort_keys=True) + "\n" for name, made in built.items()}


def write(files: dict[str, str], folder: Path) -> None:
    """Makes the folders that are missing. Raises Unavailable."""
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}; name another folder with --out") from None
