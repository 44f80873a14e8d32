"""What every rule must have, for all options: known names, a complete text, a runbook."""

import re
import subprocess
from dataclasses import replace

import pytest
import yaml

from gpufrag.commands import COMMANDS
from gpufrag.errors import UsageError
from gpufrag.metrics import TABLE
from gpufrag.metrics.names import AlertName
from gpufrag.mixin import recording, rules
from gpufrag.mixin.config import Config, Thresholds, Timing, load
from gpufrag.restarter.metrics import ROWS
from helpers import TESTS, kept
from promtool import EVERYTHING

ROOT = TESTS.parent
RUNBOOKS = ROOT / "docs" / "runbooks"
CHECKED_IN = {
    rules.RULES: ROOT / "deploy/prometheus/rules.yaml",
    rules.OPERATOR: ROOT / "deploy/kubernetes/monitoring/prometheusrule.yaml",
}
RULES = [rule for group in rules.groups(EVERYTHING) for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
EXPORTED = {row.name for row in TABLE} | {row.name for row in ROWS}
HEADINGS = ["What it means", "How to confirm", "What to do", "When to ignore it"]
SERIES = re.compile(r"(?<![\w:])(?:(?:[a-z]+:)?gpufrag_\w+(?::\w+)?|up\b)")
PAGES = [
    *sorted(RUNBOOKS.glob("*.md")),
    *(ROOT / "docs" / page for page in ("prometheus.md", "metrics.md", "scale.md")),
]

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def named_in(text: str) -> set[str]:
    return {name for name in SERIES.findall(text) if name != "up"}


@pytest.mark.parametrize("name", CHECKED_IN)
def test_checked_in_rules_are_up_to_date(name):
    kept(CHECKED_IN[name], rules.rule_files(Config())[name])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rule_names_only_known_series(rule):
    texts = [rule["expr"], *rule.get("annotations", {}).values()]
    assert named_in(" ".join(texts)) - EXPORTED - RECORDED == set()


@each_alert
def test_alert_is_complete(alert):
    annotations = alert["annotations"]
    assert re.fullmatch(r"Gp(u|ufrag)[A-Z]\w+", alert["alert"])
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert re.fullmatch(r"[A-Z][^{}]+[^.]", annotations["summary"])
    assert re.fullmatch(r"Job \{\{.+[.]", annotations["description"])
    assert annotations["runbook_url"] == f"https://runbooks.example/gpu/{alert['alert']}"


@each_alert
def test_runbook_has_four_sections(alert):
    page = (RUNBOOKS / f"{alert['alert']}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {alert['alert']}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS


def test_every_alert_name_is_an_alert_with_a_runbook():
    alerts = {alert["alert"] for alert in ALERTS}
    constants = {value for key, value in vars(AlertName).items() if key.isupper()}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == alerts == constants == set(rules.alert_names(Config()))


@each_page
def test_page_names_only_known_commands_and_metrics(page):
    """A name that ends in _ is a prefix; gpufrag_action is a label."""
    text = page.read_text(encoding="utf-8")
    commands = set(re.findall(r"`gpufrag ([a-z-]+)", text))
    assert commands - {row.name for row in COMMANDS} == set()
    metrics = {name for name in named_in(text) if not name.endswith("_")}
    assert metrics - EXPORTED - RECORDED - {"gpufrag_action"} == set()


def test_only_trigger_requests_restart_and_keeps_firing():
    acting = [alert for alert in ALERTS if "gpufrag_action" in alert["labels"]]
    assert [(alert["alert"], alert["keep_firing_for"]) for alert in acting] == [(AlertName.FRAGMENTED, "5m")]


@each_alert
def test_alert_is_one_per_job(alert):
    assert f"by ({Config().by_job})" in alert["expr"] or "job:gpufrag_" in alert["expr"]


def test_cache_alert_is_off_by_default():
    assert AlertName.CACHE_FRAGMENTED not in rules.rule_file(Config())


def test_only_cache_alert_reads_rules_that_are_not_urgent():
    late = RECORDED - recording.URGENT
    assert {alert["alert"] for alert in ALERTS if named_in(alert["expr"]) & late} == {AlertName.CACHE_FRAGMENTED}


def test_operator_file_has_same_groups():
    files = rules.rule_files(replace(Config(), metadata_labels={"release": "prom"}))
    operator = yaml.safe_load(files[rules.OPERATOR])
    assert operator["spec"] == yaml.safe_load(files[rules.RULES])
    assert operator["metadata"] == {"name": "gpufrag", "labels": {"release": "prom"}}


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
def test_promtool_accepts_rules_with_options(config, promtool, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(rules.rule_file(config), encoding="utf-8")
    done = subprocess.run([promtool, "check", "rules", "--lint-fatal", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_selector_is_applied_to_every_series():
    """Except to matchers that `job:` rules do not have."""
    chosen = load(None, ["off=[]", "selector=site='x', namespace=~'ml'"])
    for rule in (rule for group in rules.groups(chosen) for rule in group["rules"]):
        found = list(SERIES.finditer(rule["expr"]))
        wanted = ["{namespace=~'ml'" if name[0].startswith("job:") else "{site='x', namespace=~'ml'" for name in found]
        assert found
        assert [rule["expr"][name.end() :][: len(want)] for name, want in zip(found, wanted)] == wanted


@pytest.mark.parametrize(
    ("url", "link"),
    [("https://wiki/gpu/", "https://wiki/gpu/X"), ("https://wiki/{name}.md#top", "https://wiki/X.md#top"), ("", None)],
)
def test_runbook_address_follows_config(url, link):
    assert Config(runbook_url=url).runbook("X") == link


def test_shipped_files_have_no_external_links():
    """Without runbook_url, alerts link to the sidecar, and dashboards have no links to runbooks."""
    for path in (*CHECKED_IN.values(), *(ROOT / "grafana").glob("*.json")):
        found = re.findall(r"https?://[\w.]+", path.read_text(encoding="utf-8"))
        assert set(found) <= {"http://"}, path


def test_unknown_alert_in_off_is_refused():
    with pytest.raises(UsageError, match=r"GpuMemoryFragmentd.* in off .did you mean .GpuMemoryFragmented"):
        rules.groups(replace(Config(), off=("GpuMemoryFragmentd",)))
