"""All files that a Config makes, by their path in the output folder."""

from __future__ import annotations

from pathlib import Path

from ..errors import Unavailable
from . import rules
from .config import Config

RULES, OPERATOR, DASHBOARDS = "rules.yaml", "prometheusrule.yaml", "grafana"


def rule_files(config: Config) -> dict[str, str]:
    """For Prometheus itself, and for its operator."""
    return {RULES: rules.rule_file(config), OPERATOR: rules.prometheus_rule(config)}


def dashboard_files(config: Config) -> dict[str, str]:
    """Raises Unavailable where the library that writes them is not installed."""
    try:
        from . import dashboards
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "grafana_foundation_sdk":
            raise
        raise Unavailable(
            "dashboards need grafana-foundation-sdk: pip install 'gpufrag[dashboards]', or give --rules-only"
        ) from None
    return {f"{DASHBOARDS}/{name}.json": text for name, text in dashboards.build(config).items()}


def write(files: dict[str, str], folder: Path) -> None:
    """Makes the folders that are missing. Raises Unavailable."""
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}; name another folder with --out") from None
