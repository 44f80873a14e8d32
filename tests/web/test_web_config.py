"""The web config file: what is accepted, and the error for what is not."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufrag.errors import GpufragError
from gpufrag.web import config

Write = Callable[..., Path]


def refusal(path: Path) -> str:
    with pytest.raises(GpufragError) as caught:
        config.tls_context(config.load(path))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_empty_file_is_plain_http(write: Write) -> None:
    web = config.load(write(""))
    assert (web, config.tls_context(web)) == (config.WebConfig(), None)
    assert not web.authenticates


def test_every_setting_is_read(write: Write, certificate: Any, hashed: Callable[[str], str]) -> None:
    web = config.load(
        write(
            f"""
            tls_server_config:
              cert_file: {certificate.cert}
              key_file: {certificate.key}
              client_auth_type: RequireAndVerifyClientCert
              client_ca_file: {certificate.cert}
              min_version: TLS13
              max_version: TLS13
            http_server_config:
              http2: false
              headers: {{X-Frame-Options: deny}}
            basic_auth_users: {{alice: "{hashed("secret")}"}}
            """
        )
    )
    context = config.tls_context(web)
    assert context is not None
    assert (context.verify_mode, context.minimum_version) == (ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_3)
    assert web.authenticates


def test_paths_start_at_the_file(write: Write) -> None:
    path = write("tls_server_config: {cert_file: a.crt, key_file: sub/a.key}")
    assert config.load(path).files == (path.parent / "a.crt", path.parent / "sub/a.key")


TLS = "tls_server_config: {cert_file: a, key_file: b"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file is required"),
        (f"{TLS}, cipher_suites: [x]}}", "cipher_suites is not supported: remove it; .* TLS13"),
        (f"{TLS}, cert: x}}", "tls_server_config.cert is not supported: write it to a file and set cert_file"),
        ("rate_limit: {interval: 1s, burst: 5}", "rate_limit is not supported: remove it; web.max_requests"),
        (f"{TLS}, min_version: TLS10}}", r"min_version must be TLS12 or TLS13 \(got 'TLS10'\)"),
        (f"{TLS}, min_version: TLS13, max_version: TLS12}}", "min_version is above max_version"),
        (f"{TLS}, client_auth_type: RequireAnyClientCert}}", "client_auth_type must be NoClientCert, Verify"),
        (f"{TLS}, client_auth_type: RequireAndVerifyClientCert}}", "client_ca_file is missing"),
        (f"{TLS}, client_ca_file: c}}", "client_auth_type is missing: "),
        ("http_server_config: {headers: {X-Frame-Option: deny}}", 'did you mean "X-Frame-Options"'),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "unprintable"),
        ("basic_auth_users: {alice: hunter2}", "basic_auth_users.alice is not a bcrypt hash; make one: htpasswd"),
        ("basic_auth_users: {'a:b': x}", "'a:b' is not a user name"),
    ],
)
def test_mistake_is_reported_without_secrets(write: Write, text: str, problem: str) -> None:
    path = write(text)
    shown = refusal(path)
    assert re.search(problem, shown)
    assert str(path) in shown
    assert "hunter2" not in shown


def test_hash_is_not_in_the_repr(write: Write, hashed: Callable[[str], str]) -> None:
    assert "$2b$" not in repr(config.load(write(f"basic_auth_users: {{alice: '{hashed('x')}'}}")))


def test_missing_certificate_is_named(write: Write, certificate: Any) -> None:
    path = write(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: gone.key}}")
    assert f"{path.parent / 'gone.key'} (in tls_server_config): No such file" in refusal(path)


def test_file_without_certificate_is_named(write: Write, certificate: Any) -> None:
    write("nonsense", "a.crt")
    path = write(f"tls_server_config: {{cert_file: a.crt, key_file: {certificate.key}}}")
    assert "a.crt and " in refusal(path)


def test_key_of_another_certificate_is_refused(write: Write, certificate: Any, make_certificate: Any) -> None:
    other = make_certificate("other")
    path = write(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {other.key}}}")
    assert "are not a certificate and its key (KEY_VALUES_MISMATCH)" in refusal(path)


def test_key_with_passphrase_is_refused(write: Write, certificate: Any, tmp_path: Path) -> None:
    import subprocess

    locked = tmp_path / "locked.key"
    command = f"openssl pkcs8 -topk8 -in {certificate.key} -out {locked} -passout pass:word"
    subprocess.run(command.split(), check=True, capture_output=True)
    path = write(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {locked}}}")
    assert "the key has a passphrase" in refusal(path)
