"""The web config file: what is taken, and one line for each thing that is not."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufrag.errors import BadInput, GpufragError, Unavailable, UsageError
from gpufrag.web import config

Write = Callable[..., Path]


def refusal(path: Path) -> str:
    with pytest.raises(GpufragError) as caught:
        config.tls_context(config.load(path))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_empty_file_is_plain_http(write: Write) -> None:
    web = config.load(write(""))
    assert (web, config.tls_context(web)) == (config.WebConfig(), None)
    assert not web.authenticates


def test_the_whole_form_is_read(write: Write, certificate: Any, hashed: Callable[[str], str]) -> None:
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


def test_paths_count_from_the_file(write: Write) -> None:
    path = write("tls_server_config: {cert_file: a.crt, key_file: sub/a.key}")
    assert config.load(path).files == (path.parent / "a.crt", path.parent / "sub/a.key")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tls_server_confg: {}", "tls_server_confg is not a key; did you mean tls_server_config?"),
        ("tls_server_config: {cert_flie: a, key_file: b}", "tls_server_config.cert_flie .* did you mean cert_file"),
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file is missing"),
        (
            "tls_server_config: {}",
            "tls_server_config.cert_file and tls_server_config.key_file are missing",
        ),
        ("tls_server_config:", "tls_server_config is empty: a mapping of keys belongs here"),
        ("tls_server_config: {cert_file: '', key_file: b}", "tls_server_config.cert_file is empty: the path of a file"),
        ('tls_server_config: {cert_file: "a\\0b", key_file: b}', "tls_server_config.cert_file is no path"),
        ("tls_server_config: {cipher_suites: [x]}", "cipher_suites is not served by gpufrag: OpenSSL's own .* TLS13"),
        ("tls_server_config: {cert: x, key: y}", "tls_server_config.cert is not served .* name that in cert_file"),
        ("rate_limit: {interval: 1s, burst: 5}", "rate_limit is not served by gpufrag: remove it; web.max_requests"),
        ("tls_server_config: {cert_file: 3, key_file: b}", "tls_server_config.cert_file is a number: a path belongs"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "min_version is 'TLS10': one of TLS12"),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}",
            "min_version is above max_version",
        ),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}",
            "one of NoClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert",
        ),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "client_ca_file is missing",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "client_ca_file alone verifies nobody"),
        ("http_server_config: {headers: {X-Frame-Option: deny}}", "did you mean X-Frame-Options"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "unprintable"),
        ("basic_auth_users: {alice: secret}", "basic_auth_users.alice is not a bcrypt hash; make one: htpasswd"),
        ("basic_auth_users: {'a:b': x}", "'a:b' cannot be a user name"),
        ("basic_auth_users: [alice]", "basic_auth_users is a list: a mapping belongs here"),
        ("basic_auth_users: {a: b, a: c}", "line 1: key a is given twice"),
        ("a: [", "not YAML: line 1"),
        ("[]", "the whole is a list: a mapping of keys belongs here"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(write: Write, text: str, told: str) -> None:
    assert re.search(told, refusal(write(text)))


def test_an_error_names_the_file_and_tells_no_secret(write: Write) -> None:
    text = refusal(write("basic_auth_users: {alice: hunter2}"))
    assert text.startswith(str(write("")))
    assert "hunter2" not in text


def test_a_hash_is_not_shown_in_a_traceback(write: Write, hashed: Callable[[str], str]) -> None:
    assert "$2b$" not in repr(config.load(write(f"basic_auth_users: {{alice: '{hashed('x')}'}}")))


def test_usage_is_told_from_failure(write: Write, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"none.yml: No such file"):
        config.load(tmp_path / "none.yml")
    with pytest.raises(BadInput):
        config.load(write("a: b: c"))
    with pytest.raises(UsageError):
        config.load(write("a: b"))


def test_a_missing_certificate_is_named(write: Write, certificate: Any) -> None:
    path = write(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: gone.key}}")
    assert f"{path.parent / 'gone.key'}: No such file" in refusal(path)


def test_a_file_that_is_no_certificate_is_named(write: Write, certificate: Any) -> None:
    write("nonsense", "a.crt")
    path = write(f"tls_server_config: {{cert_file: a.crt, key_file: {certificate.key}}}")
    assert "a.crt and " in refusal(path)


def test_a_key_of_another_certificate_is_refused(write: Write, certificate: Any, make_certificate: Any) -> None:
    other = make_certificate("other")
    path = write(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {other.key}}}")
    assert "are no certificate and its key (KEY_VALUES_MISMATCH)" in refusal(path)


def test_a_passphrase_is_not_asked_for(write: Write, certificate: Any, tmp_path: Path) -> None:
    import subprocess

    locked = tmp_path / "locked.key"
    command = f"openssl pkcs8 -topk8 -in {certificate.key} -out {locked} -passout pass:word"
    subprocess.run(command.split(), check=True, capture_output=True)
    path = write(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {locked}}}")
    assert "the key has a passphrase" in refusal(path)
