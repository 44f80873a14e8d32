"""Selectors, thresholds and labels: what can be set, and what is refused in one line."""

import pytest

from gpufrag.errors import UsageError
from gpufrag.mixin.config import Config, Timing, duration, load, number


def test_settings_override_the_file(tmp_path):
    path = tmp_path / "mixin.yaml"
    path.write_text("thresholds: {fragmentation_ratio: 6, stale: 5m}\ntiming: {hold: 10m}\n")
    config = load(path, ["thresholds.fragmentation_ratio=8", "labels.team=ml", "off=[GpuMemoryTight]"])
    assert (config.thresholds.fragmentation_ratio, config.thresholds.stale) == (8.0, 300.0)
    assert config.timing == Timing(hold=600.0)
    assert (config.labels, config.off) == ({"team": "ml"}, ("GpuMemoryTight",))


def test_default_config_is_valid():
    assert load(None) == Config()


@pytest.mark.parametrize(("setting", "error"), [
    ("fragmentation_ratio=6", r'unknown key "fragmentation_ratio" \(known'),
    ("thresholds.fragmentation_ration=6", 'did you mean "fragmentation_ratio"'),
    ("thresholds.fragmentation_ratio=high", r"thresholds\.fragmentation_ratio must be .*got 'high'"),
    ("timing.hold=0", r"timing\.hold must be a duration from 1ms to 365d"),
    ("selector", "write KEY=VALUE"),
    ("off=[", "the value is not valid YAML"),
    ("selector.x=1", "selector must be text"),
    ("selector={a='b'}", "selector must be text"),
    ("selector='{a=\"b\"}'", "selector must be a list of matchers without braces"),
    ("selector='a=\"b'", "selector must be a list of matchers"),
    ("selector=cluster", "selector must be a list of matchers"),
    ("selector='a=\"b`\"'", "selector must be a list of matchers"),
    ("selector='cluster=\"a\",__name__=~\"gpufrag.*\"'", "selector must not select __name__"),
    ("target_selector='__name__=\"up\"'", "target_selector must not select __name__"),
    ("target_selector='job=gpufrag'", "target_selector must be a list of matchers"),
    ("thresholds.fragmentation_ratio=.inf", r"thresholds\.fragmentation_ratio must be a number between 1 and 1000"),
    ("thresholds.fragmentation_ratio=.nan", r"thresholds\.fragmentation_ratio must be a number between 1 and 1000"),
    ("thresholds.cache_ratio=1", r"thresholds\.cache_ratio must be a number between 1 and 1000"),
    ("thresholds.free_share=5", r"thresholds\.free_share must be a number between 0 and 1"),
    ("thresholds.retries_per_minute=-1", r"thresholds\.retries_per_minute must be a number from 0 to 1000"),
    ("timing.hold=0.0001", r"timing\.hold must be a duration from 1ms"),
    ("labels.gpufrag_action=restart", "labels: gpufrag_action is already a label of the alerts"),
    ("labels.severity=page", "labels: severity is already a label of the alerts"),
    ("labels.job_name=x", "labels: job_name is already a label of the alerts"),
    ("labels.alertname=x", "labels: alertname is already a label of the alerts"),
    ("labels.__name__=x", "labels: __name__ is already a label of the alerts"),
    ("labels.team=''", r"labels\.team is empty"),
    ("severities.info=''", r"severities\.info is empty"),
    ("severity_label=gpufrag_action", "severity_label: gpufrag_action is already a label of the alerts"),
    ("severity_label=namespace", "severity_label: namespace is already a label of the alerts"),
    ("job_labels=[job, job]", "job_labels: job is listed twice"),
    ("job_labels=[job, rank]", "job_labels: rank is not a target label"),
    ("job_labels=[job, __name__]", "job_labels: __name__ is not a target label"),
    ("runbook_url='https://x/{{ y }}'", "runbook_url must not contain spaces, or braces"),
    ("job_labels=[]", "job_labels is empty"),
    ("labels.a-b=c", "'a-b' is not a label name"),
    ("severities.fatal=page", 'unknown key "fatal" in severities'),
])  # fmt: skip
def test_invalid_setting_is_refused(setting, error):
    with pytest.raises(UsageError, match=error):
        load(None, [setting])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (1, "1s"), (90, "90s"), (300, "5m"), (3600, "1h"), (86400, "24h")]
)
def test_duration_is_written_like_prometheus(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(4.0, "4"), (0.05, "0.05"), (1234567.0, "1234567"), (1e-7, "1e-07")])
def test_number_is_written_exactly(value, text):
    assert number(value) == text


@pytest.mark.parametrize("text", ["", 'a="b",', ' a = \'b\' , c!~"d{2}|\\"e\\"" '])
def test_selector_with_any_spacing_is_accepted(text):
    """Spaces, either quotes, escapes, braces inside a pattern, a comma at the end."""
    assert Config(selector=text).series("up", 'x="y"').startswith("up{")
    assert ",, " not in Config(selector=text).series("up", 'x="y"')


def test_job_rule_is_selected_by_its_own_labels():
    config = Config(selector="""site="a,namespace='b'", namespace =~ 'ml-.*',""")
    assert config.rule("job:x", 'c="d"') == """job:x{namespace =~ 'ml-.*', c="d"}"""
    assert Config(selector='site="a"').rule("job:x") == "job:x"


def test_series_gets_the_selector_first():
    assert Config().series("up") == "up"
    assert Config(selector='a="b"').series("up", 'c="d"') == 'up{a="b", c="d"}'
