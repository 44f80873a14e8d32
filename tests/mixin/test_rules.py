"""What every rule must have, whatever the options: names that exist, texts for people, a page to read on."""

import re
import subprocess
from dataclasses import replace

import pytest
import yaml

from gpufrag.cli import COMMANDS
from gpufrag.errors import UsageError
from gpufrag.metrics import TABLE
from gpufrag.mixin import outputs, recording, rules
from gpufrag.mixin.alert import AWAITED
from gpufrag.mixin.config import Config, Thresholds, Timing, load
from gpufrag.restarter.metrics import ROWS
from helpers import TESTS, kept
from promtool import EVERYTHING

ROOT = TESTS.parent
RUNBOOKS = ROOT / "docs" / "runbooks"
CHECKED_IN = {
    outputs.RULES: ROOT / "deploy/prometheus/rules.yaml",
    outputs.OPERATOR: ROOT / "deploy/kubernetes/monitoring/prometheusrule.yaml",
}
RULES = [rule for group in rules.groups(EVERYTHING) for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
EXPORTED = {row.name for row in TABLE} | {row.name for row in ROWS}
HEADINGS = ["What it means", "How to confirm", "What to do", "When to ignore it"]


@pytest.mark.parametrize("name", CHECKED_IN)
def test_checked_in_files_are_up_to_date(name):
    kept(CHECKED_IN[name], outputs.rule_files(Config())[name])


SERIES = re.compile(r"(?<![\w:])(?:(?:[a-z]+:)?gpufrag_\w+(?::\w+)?|up\b)")


def named_in(text: str) -> set[str]:
    return {name for name in SERIES.findall(text) if name != "up"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_name_is_of_the_table_or_recorded_or_awaited(rule):
    known = EXPORTED | RECORDED | AWAITED.keys()
    texts = [rule["expr"], *rule.get("annotations", {}).values()]
    assert named_in(" ".join(texts)) - known == set()


def test_what_has_come_is_not_awaited():
    assert AWAITED.keys() & EXPORTED == set()


def test_what_is_awaited_is_asked_for():
    text = rules.rule_file(EVERYTHING)
    assert [name for name in AWAITED if name not in text] == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alert_is_complete(alert):
    annotations = alert["annotations"]
    assert re.fullmatch(r"Gp(u|ufrag)[A-Z]\w+", alert["alert"])
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert annotations["summary"].endswith(".")
    assert "{{" not in annotations["summary"]
    assert annotations["description"].startswith("Job {{")
    assert annotations["runbook_url"].endswith(f"/docs/runbooks/{alert['alert']}.md")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_runbook_answers_four_questions(alert):
    page = (RUNBOOKS / f"{alert['alert']}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {alert['alert']}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_runbooks_name_only_commands_that_there_are(page):
    named = set(re.findall(r"`gpufrag ([a-z-]+)", page.read_text(encoding="utf-8")))
    assert named - {row.name for row in COMMANDS} == set()


@pytest.mark.parametrize(
    "page", [*sorted(RUNBOOKS.glob("*.md")), ROOT / "docs/prometheus.md"], ids=lambda page: page.stem
)
def test_pages_name_only_metrics_that_there_are(page):
    """A name that ends in _ stands for several; gpufrag_action is a label."""
    named = {name for name in named_in(page.read_text(encoding="utf-8")) if not name.endswith("_")}
    assert named - EXPORTED - RECORDED - {"gpufrag_action"} == set()


def test_no_runbook_is_about_nothing():
    assert {path.stem for path in RUNBOOKS.glob("Gp*.md")} == {alert["alert"] for alert in ALERTS}


def test_the_summary_tells_the_threshold_that_is_set():
    chosen = load(None, ["off=[]", "thresholds.fragmentation_ratio=6"])
    assert "a request for 1/6 of what is free" in rules.rule_file(chosen)


def test_only_the_trigger_restarts_and_it_does_not_blink():
    acting = [alert for alert in ALERTS if "gpufrag_action" in alert["labels"]]
    assert [alert["alert"] for alert in acting] == ["GpuMemoryFragmented"]
    assert acting[0]["keep_firing_for"] == "5m"


def test_alerts_are_one_a_job():
    """They are sums over a job, or compare what is recorded of jobs."""
    by_job = f"by ({Config().by_job})"
    per_rank = [alert for alert in ALERTS if by_job not in alert["expr"] and "job:gpufrag_" not in alert["expr"]]
    assert per_rank == []


def test_the_one_that_cries_wolf_is_off_by_default():
    assert "GpuMemoryCacheFragmented" not in rules.rule_file(Config())
    assert set(rules.names(Config())) == {alert["alert"] for alert in ALERTS}


def test_alerts_read_nothing_that_is_recorded_late():
    """The one that cries wolf may wait."""
    late = RECORDED - recording.URGENT
    texts = {alert["alert"]: named_in(alert["expr"]) & late for alert in ALERTS}
    assert {alert for alert, names in texts.items() if names} == {"GpuMemoryCacheFragmented"}


def test_the_operator_gets_the_same_groups():
    files = outputs.rule_files(replace(Config(), metadata_labels={"release": "prom"}))
    operator = yaml.safe_load(files[outputs.OPERATOR])
    assert operator["spec"] == yaml.safe_load(files[outputs.RULES])
    assert operator["metadata"] == {"name": "gpufrag", "labels": {"release": "prom"}}


def test_output_is_the_same_each_time():
    assert outputs.rule_files(Config()) == outputs.rule_files(Config())


OPTIONS = [
    EVERYTHING,
    replace(EVERYTHING, selector='cluster="a",namespace=~"ml-.*"', job_labels=("job",)),
    replace(EVERYTHING, selector="""site='it"s', pod=~"a{2}%b\\"", """),
    replace(EVERYTHING, thresholds=Thresholds(fragmentation_ratio=2.5, foreign_bytes=10**12, leak_horizon=1e7)),
    replace(EVERYTHING, timing=Timing(interval=0.5, window=90, rate_window=3600, hold=86400)),
    replace(EVERYTHING, labels={"team": "ml"}, severities={"critical": "page"}, severity_label="level"),
]


@pytest.mark.real
@pytest.mark.parametrize("config", OPTIONS)
def test_promtool_accepts_the_rules(config, promtool, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(rules.rule_file(config), encoding="utf-8")
    done = subprocess.run([promtool, "check", "rules", "--lint-fatal", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("number", range(len(RULES)))
def test_the_selector_reaches_every_series(number):
    """But what is recorded of jobs: it has no label that jobs are not named by."""
    chosen = load(None, ["off=[]", "selector=site='x', namespace=~'ml'"])
    expr = [rule for group in rules.groups(chosen) for rule in group["rules"]][number]["expr"]
    found = list(SERIES.finditer(expr))
    wanted = ["{namespace=~'ml'" if name[0].startswith("job:") else "{site='x', namespace=~'ml'" for name in found]
    assert found
    assert [expr[name.end() :][: len(want)] for name, want in zip(found, wanted)] == wanted


def test_an_alert_that_is_not_there_cannot_be_off():
    with pytest.raises(UsageError, match='unknown key "GpuMemoryFragmentd" in off'):
        rules.groups(replace(Config(), off=("GpuMemoryFragmentd",)))


def test_recording_rules_explain_themselves():
    every = [*recording.rank_rules(Config()), *recording.job_rules(Config())]
    assert [rule.record for rule in every if not rule.meaning] == []
