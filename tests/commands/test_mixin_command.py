"""`gpufrag mixin build`: files in a chosen folder."""

import subprocess
import sys

import pytest
import yaml


def build(folder, *flags):
    return ("mixin", "build", "--out", folder, "--rules-only", *flags)


def test_settings_reach_the_rules(cli, tmp_path):
    flags = ("--set", "severities.critical=page", "--set", "labels.team=ml", "--set", "off=[]")
    files = [str(tmp_path / "new" / name) for name in ("rules.yaml", "prometheusrule.yaml")]
    assert cli.text(*build(tmp_path / "new", *flags)).split() == files
    groups = yaml.safe_load((tmp_path / "new" / "rules.yaml").read_text())["groups"]
    labels = {rule["alert"]: rule["labels"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert labels["GpuMemoryNextRequestWillFail"] == {"severity": "page", "team": "ml"}
    assert "GpuMemoryCacheFragmented" in labels


def test_config_file_reaches_the_rules(cli, tmp_path):
    config = tmp_path / "mixin.yaml"
    config.write_text("selector: cluster='a'\n", encoding="utf-8")
    cli.text(*build(tmp_path, "--config", config))
    assert "gpufrag_build_info{cluster='a'}" in (tmp_path / "rules.yaml").read_text()


@pytest.mark.parametrize(("flags", "code", "text"), [
    (["--set", "thresholds.ratio=1"], 2, 'unknown key "ratio" in thresholds'),
    (["--set", "off=[Nothing]"], 2, 'unknown key "Nothing" in off'),
    (["--config", "/nowhere.yaml"], 1, "/nowhere.yaml: No such file"),
    (["--out", "/dev/null"], 1, "choose another folder with --out"),
])  # fmt: skip
def test_bad_call_is_one_line(cli, tmp_path, flags, code, text):
    found, error = cli.refusal(*build(tmp_path, *flags))
    assert (found, text in error) == (code, True), error


def test_file_as_folder_is_refused(cli, tmp_path):
    (tmp_path / "file").write_text("")
    code, error = cli.refusal(*build(tmp_path / "file"))
    assert (code, "file is not a folder; choose another folder with --out" in error) == (1, True)


def test_dashboards_are_next_to_the_rules(cli, tmp_path):
    pytest.importorskip("grafana_foundation_sdk")
    cli.text("mixin", "build", "--out", tmp_path)
    assert len(list((tmp_path / "grafana").glob("*.json"))) == 3


def test_dashboards_without_their_library_say_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['grafana_foundation_sdk'] = None\n"
        "from gpufrag.cli import main; sys.exit(main(['mixin', 'build', '--out', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert "pip install 'gpufrag[mixin]'" in done.stderr
