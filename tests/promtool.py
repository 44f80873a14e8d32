"""Unit tests of rules with promtool: which series make an alert fire, and with which text."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpufrag.mixin import rules
from gpufrag.mixin.config import Config

EVERYTHING = Config(off=(), runbook_url="https://runbooks.example/gpu")
JOB = {"namespace": "ml", "job": "gpufrag", "job_name": "llm"}
GIB = 1 << 30
Line = dict[str, str]


@dataclass(frozen=True)
class Firing:
    """An expected alert: its description, its job, and additional annotations."""

    description: str
    job: Mapping[str, str] = field(default_factory=lambda: JOB)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What an alert does at time `at` with `series`: one Firing, or None if it must not fire."""

    alert: str
    why: str
    at: str
    series: Sequence[Line]
    firing: Firing | None = None

    @property
    def id(self) -> str:
        return f"{self.alert}: {'fires' if self.firing else 'silent'}, {self.why}"


def line(name: str, values: str, **labels: str) -> Line:
    """One series of the job's pod llm-0; `values` are promtool's, one per half minute."""
    everything = {**JOB, "instance": "10.0.0.1:9836", "pod": "llm-0", **labels}
    text = ", ".join(f'{label}="{value}"' for label, value in everything.items() if value)
    return {"series": f"{name}{{{text}}}", "values": values}


def device(name: str, values: str | float, **labels: str) -> Line:
    """A series of rank 0, device 0 (unless overridden by labels); a number is constant for an hour."""
    text = values if isinstance(values, str) else f"{values:.0f}+0x120"
    return line(name, text, **{"rank": "0", "device": "0", **labels})


class Judge:
    """Runs `promtool test rules` on all alerts, including those that are off by default."""

    def __init__(self, promtool: str, folder: Path, config: Config = EVERYTHING) -> None:
        self.promtool, self.folder = promtool, folder
        (folder / "rules.yaml").write_text(rules.rule_file(config), encoding="utf-8")
        every = (rule for group in rules.groups(config) for rule in group["rules"])
        self.alerts = {rule["alert"]: rule for rule in every if "alert" in rule}

    def __call__(self, case: Case) -> None:
        """Fails if the alert does not behave as in the case."""
        expected = [] if case.firing is None else [self.expected(case.alert, case.firing)]
        question = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}
        self.ask({"input_series": list(case.series), "alert_rule_test": [question]})

    def ask(self, test: Mapping[str, Any]) -> None:
        """One entry of promtool's `tests`."""
        document = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [{"interval": "30s", **test}]}
        path = self.folder / "test.yaml"
        path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
        done = subprocess.run([self.promtool, "test", "rules", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def expected(self, alert: str, firing: Firing) -> dict[str, Any]:
        """The rule's own labels and static texts, and those of the case."""
        rule = self.alerts[alert]
        fixed = {key: text for key, text in rule["annotations"].items() if "{{" not in text}
        texts = {**fixed, "description": firing.description, **firing.annotations}
        return {"exp_labels": {**rule["labels"], **firing.job}, "exp_annotations": texts}
