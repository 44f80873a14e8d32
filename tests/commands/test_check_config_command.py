"""`gpufrag check-config`: a good file is said to be good, a bad one is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufrag.cli import main


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", 0, "good"),
        ("web: {listen_address: ':9836', keep_alive: 30s}", 0, "good"),
        ("web: {prot: 1}", 2, 'unknown key "prot" in web'),
        ("web: {listen_address: nowhere}", 2, "gpufrag.yaml: web.listen_address: 'nowhere' is no listen address"),
        ("web: {listen_address: ':70000'}", 2, "gpufrag.yaml: web.listen_address: ':70000' is no listen address"),
        ("web: {max_header_size: 1}", 2, "web.max_header_size must be a size from 1KiB to 1MiB (got '1')"),
        ("folder: {dead_process_retention: 1000d}", 2, "folder.dead_process_retention must be "),
        ("web: {config_file: none.yml}", 1, "none.yml: No such file"),
        ("web: [", 1, "not valid YAML: line 1"),
    ],
)
def test_a_config_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, told: str
) -> None:
    config = tmp_path / "gpufrag.yaml"
    config.write_text(text)
    assert main(["check-config", str(config)]) == code
    shown = capsys.readouterr()
    assert told in (shown.err if code else shown.out)
    assert (shown.out + shown.err).count("\n") == 1


def test_the_web_config_that_it_names_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpufrag.yaml").write_text("web: {config_file: web.yml}")
    (tmp_path / "web.yml").write_text("basic_auth_users: {alice: hunter2}")
    assert main(["check-config", str(tmp_path / "gpufrag.yaml")]) == 2
    shown = capsys.readouterr().err
    assert f"{tmp_path}/web.yml: basic_auth_users.alice is not a bcrypt hash" in shown
    assert "hunter2" not in shown


def test_a_web_config_alone_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yml").write_text("http_server_config: {http2: false}")
    assert main(["check-config", "--web", str(tmp_path / "web.yml")]) == 0
    (tmp_path / "web.yml").write_text("http_server_cnfig: {}")
    assert main(["check-config", "--web", str(tmp_path / "web.yml")]) == 2
    assert 'did you mean "http_server_config"?' in capsys.readouterr().err
