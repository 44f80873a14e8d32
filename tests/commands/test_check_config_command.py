"""`gpufrag check-config`: reports every mistake in a config file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufrag.cli import main


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("", 0, "valid"),
        ("web: {listen_address: ':9836', keep_alive: 30s}", 0, "valid"),
        ("web: {prot: 1}", 2, 'unknown key "prot" in web'),
        ("web: {listen_address: nowhere}", 2, "gpufrag.yaml: web.listen_address: 'nowhere' is not a listen address"),
        ("web: {listen_address: ':70000'}", 2, "gpufrag.yaml: web.listen_address: ':70000' is not a listen address"),
        ("web: {max_header_size: 1}", 2, "web.max_header_size must be a size from 1KiB to 1MiB (got '1')"),
        ("folder: {dead_process_retention: 1000d}", 2, "folder.dead_process_retention must be "),
        ("web: {config_file: none.yml}", 1, "none.yml: No such file"),
        ("web: [", 1, "not valid YAML: line 1"),
    ],
)
def test_config_is_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, problem: str
) -> None:
    config = tmp_path / "gpufrag.yaml"
    config.write_text(text)
    assert main(["check-config", str(config)]) == code
    shown = capsys.readouterr()
    assert problem in (shown.err if code else shown.out)
    assert (shown.out + shown.err).count("\n") == 1


def test_web_config_it_names_is_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpufrag.yaml").write_text("web: {config_file: web.yml}")
    (tmp_path / "web.yml").write_text("basic_auth_users: {alice: hunter2}")
    assert main(["check-config", str(tmp_path / "gpufrag.yaml")]) == 2
    shown = capsys.readouterr().err
    assert f"{tmp_path}/web.yml: basic_auth_users.alice is not a bcrypt hash" in shown
    assert "hunter2" not in shown


def test_web_config_without_its_flag_gets_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yml").write_text("http_server_config: {http2: false}")
    assert main(["check-config", str(tmp_path / "web.yml")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("web.yml is a web config file: check it with --web")


def test_web_config_is_validated_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yml").write_text("http_server_config: {http2: false}")
    assert main(["check-config", "--web", str(tmp_path / "web.yml")]) == 0
    (tmp_path / "web.yml").write_text("http_server_cnfig: {}")
    assert main(["check-config", "--web", str(tmp_path / "web.yml")]) == 2
    assert 'did you mean "http_server_config"?' in capsys.readouterr().err
