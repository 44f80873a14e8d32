"""`gpufrag check-config`: reports every mistake in a config file."""

from __future__ import annotations

from pathlib import Path

import pytest


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
def test_config_is_validated(cli, tmp_path: Path, text: str, code: int, problem: str) -> None:
    (tmp_path / "gpufrag.yaml").write_text(text)
    found, out, err = cli.run("check-config", tmp_path / "gpufrag.yaml")
    assert (found, (out + err).count("\n")) == (code, 1)
    assert problem in (err if code else out)


def test_web_config_it_names_is_validated(cli, tmp_path: Path) -> None:
    (tmp_path / "gpufrag.yaml").write_text("web: {config_file: web.yml}")
    (tmp_path / "web.yml").write_text("basic_auth_users: {alice: hunter2}")
    code, error = cli.refusal("check-config", tmp_path / "gpufrag.yaml")
    assert code == 2
    assert f"{tmp_path}/web.yml: basic_auth_users.alice is not a bcrypt hash" in error
    assert "hunter2" not in error


def test_web_config_is_validated_alone(cli, tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("http_server_config: {http2: false}")
    assert cli.run("check-config", "--web", tmp_path / "web.yml")[0] == 0
    code, _, err = cli.run("check-config", tmp_path / "web.yml")
    assert (code, err.splitlines()[-1].partition("web.yml is ")[2]) == (2, "a web config file: check it with --web")
    (tmp_path / "web.yml").write_text("http_server_cnfig: {}")
    code, error = cli.refusal("check-config", "--web", tmp_path / "web.yml")
    assert (code, 'did you mean "http_server_config"?' in error) == (2, True)
