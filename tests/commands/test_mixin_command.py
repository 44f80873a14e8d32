"""`gpufrag mixin build`: files in a chosen folder."""

import subprocess
import sys

import pytest
import yaml

from gpufrag.cli import main


def build(folder, *flags):
    return main(["mixin", "build", "--out", str(folder), "--rules-only", *flags])


def test_rules_with_own_words(tmp_path, capsys):
    flags = ("--set", "severities.critical=page", "--set", "labels.team=ml", "--set", "off=[]")
    assert build(tmp_path / "new", *flags) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "new" / name) for name in ("rules.yaml", "prometheusrule.yaml")
    ]
    groups = yaml.safe_load((tmp_path / "new" / "rules.yaml").read_text())["groups"]
    labels = {rule["alert"]: rule["labels"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert labels["GpuMemoryNextRequestWillFail"] == {"severity": "page", "team": "ml"}
    assert "GpuMemoryCacheFragmented" in labels


def test_a_file_of_settings(tmp_path):
    config = tmp_path / "mixin.yaml"
    config.write_text("selector: cluster='a'\n", encoding="utf-8")
    assert build(tmp_path, "--config", str(config)) == 0
    assert "gpufrag_build_info{cluster='a'}" in (tmp_path / "rules.yaml").read_text()


@pytest.mark.parametrize(("flags", "code", "text"), [
    (["--set", "thresholds.ratio=1"], 2, 'unknown key "ratio" in thresholds'),
    (["--set", "off=[Nothing]"], 2, 'unknown key "Nothing" in off'),
    (["--config", "/nowhere.yaml"], 1, "/nowhere.yaml: No such file"),
])  # fmt: skip
def test_refused_in_one_line(tmp_path, capsys, flags, code, text):
    assert build(tmp_path, *flags) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert build(tmp_path / "file") == 1
    assert "choose another folder with --out" in capsys.readouterr().err


def test_dashboards_are_next_to_the_rules(tmp_path):
    pytest.importorskip("grafana_foundation_sdk")
    assert main(["mixin", "build", "--out", str(tmp_path)]) == 0
    assert len(list((tmp_path / "grafana").glob("*.json"))) == 3


def test_dashboards_without_their_library_say_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['grafana_foundation_sdk'] = None\n"
        "from gpufrag.cli import main; sys.exit(main(['mixin', 'build', '--out', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert "pip install 'gpufrag[mixin]'" in done.stderr
