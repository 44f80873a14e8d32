"""Reading settings from YAML and flags: what is accepted, and one line per mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from gpufrag.config import reader
from gpufrag.config.schema import about, between, in_range, seconds, size
from gpufrag.errors import BadInput, GpufragError, Unavailable, UsageError


@dataclass(frozen=True)
class Web:
    port: Annotated[int, in_range(1, 100, "Port.")] = 80
    timeout: Annotated[float, seconds(0.1, 60, "Timeout.")] = 10.0
    body: Annotated[int, size(1024, 1 << 20, "Body.")] = 4096
    share: Annotated[float, between(0, 1, "Share.")] = 0.5
    delay: Annotated[float, seconds(1, 60, "Delay.")] | None = None
    file: Annotated[Path | None, about("File.")] = None
    enabled: Annotated[bool, about("On.")] = True
    level: Annotated[Literal["low", "high"], about("Level.")] = "low"
    names: Annotated[tuple[str, ...], about("Names.")] = ()
    users: Annotated[Mapping[str, str], about("Users.", secret=True)] = field(default_factory=dict)
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {"http3": "remove it"}

    def __post_init__(self) -> None:
        if self.port == 99:
            raise UsageError("web.port 99 is taken")


@dataclass(frozen=True)
class Tls:
    cert: Annotated[Path, about("Certificate.")]


@dataclass(frozen=True)
class Config:
    web: Web = Web()
    tls: Tls | None = None
    name: Annotated[str, about("Name.")] = ""


Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str | bytes, flags: Mapping[str, Any] = reader.NO_FLAGS) -> Config:
        path = tmp_path / "serve.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return reader.load(Config, path, flags)

    return load_text


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "web: {}"])
def test_empty_config_gives_the_defaults(load: Load, text: str) -> None:
    assert load(text) == Config()


def test_values_are_read_in_the_units_people_write(load: Load, tmp_path: Path) -> None:
    text = "{port: 5, timeout: 250ms, body: 2KiB, share: 0.25, delay: 1m, file: a/b, level: high, names: [x]}"
    found = load(f"web: {text}\ntls: {{cert: /c}}")
    assert found.web == Web(5, 0.25, 2048, 0.25, 60.0, tmp_path / "a/b", True, "high", ("x",))
    assert found.tls == Tls(Path("/c"))


def test_flags_replace_values_of_the_file(load: Load) -> None:
    found = load("web: {port: 5, level: high}", {"web.port": 6, "tls.cert": Path("c"), "name": "x"})
    assert (found.web.port, found.web.level, found.tls, found.name) == (6, "high", Tls(Path("c")), "x")
    assert reader.load(Config, None, {"web.level": "high"}).web.level == "high"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("web: {prot: 1}", 'line 1: unknown key "prot" in web (did you mean "port"?)'),
        ("name: x\nwebs: {}", 'line 2: unknown key "webs" (did you mean "web"?)'),
        ("1: {}", 'line 1: unknown key "1" (known keys: name, tls, web)'),
        ("web: {http3: true}", "line 1: web.http3 is not supported: remove it"),
        ("web: {port: 0}", "line 1: web.port must be a whole number from 1 to 100 (got '0')"),
        ("web: {port: true}", "line 1: web.port must be a whole number from 1 to 100 (got 'True')"),
        ("web: {port: 1.5}", "line 1: web.port must be a whole number from 1 to 100 (got '1.5')"),
        ("web: {timeout: soon}", "line 1: web.timeout: 'soon' is not a duration"),
        ("web: {timeout: 0s}", "line 1: web.timeout must be a duration from 100ms to 1m (got '0s')"),
        ("web: {timeout: .inf}", "line 1: web.timeout: 'inf' is not a duration"),
        ("web: {timeout: [1s]}", "line 1: web.timeout must be a duration from 100ms to 1m (found a list)"),
        ("web: {body: 4M}", "line 1: web.body: '4M' is ambiguous"),
        ("web: {body: 1GiB}", "line 1: web.body must be a size from 1KiB to 1MiB (got '1GiB')"),
        ("web: {share: 1}", "line 1: web.share must be a number between 0 and 1 (got '1')"),
        ("web: {share: .nan}", "line 1: web.share must be a number between 0 and 1 (got 'nan')"),
        ("web: {delay: 2m}", "line 1: web.delay must be a duration from 1s to 1m (got '2m')"),
        ("web: {file: 3}", "line 1: web.file must be a path (got '3')"),
        ("web: {file: ''}", "line 1: web.file must be a path (got '')"),
        ('web: {file: "a\\nb"}', r"line 1: web.file must be a path (got 'a\nb')"),
        ("web: {enabled: 'yes'}", "line 1: web.enabled must be true or false (got 'yes')"),
        ("web: {level: loud}", "line 1: web.level must be low or high (got 'loud')"),
        ("web: {names: x}", "line 1: web.names must be a list such as [a, b] (got 'x')"),
        ("web: {users: hunter2}", "line 1: web.users must be a mapping of text to text (found text)"),
        ("web: {port: 99}", "line 1: web.port 99 is taken"),
        ("web: 9836", "line 1: web must be a mapping of keys, found a number"),
        ("web:", "line 1: web must be a mapping of keys, found nothing"),
        ("tls: {}", "line 1: tls.cert is required"),
        ("- web", "expected a YAML mapping at the top level, found a list"),
        ("hunter2", "expected a YAML mapping at the top level, found text"),
    ],
)
def test_mistake_is_reported_with_file_line_and_key(load: Load, tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(text)
    assert str(caught.value).startswith(f"cannot read config {tmp_path}/serve.yaml: {problem}")
    assert "\n" not in str(caught.value)


def test_every_mistake_gets_a_line(load: Load) -> None:
    with pytest.raises(UsageError) as caught:
        load("web:\n  port: 0\n  prot: 1\nnames: x\n")
    assert [line.split(": ")[1:3] for line in str(caught.value).split("\n")] == [
        ["line 2", "web.port must be a whole number from 1 to 100 (got '0')"],
        ["line 3", 'unknown key "prot" in web (did you mean "port"?)'],
        ["line 4", 'unknown key "names" (did you mean "name"?)'],
    ]


def test_mistake_in_a_flag_does_not_blame_the_file(load: Load) -> None:
    with pytest.raises(UsageError, match=r"^web\.level must be low or high \(got 'loud'\)$"):
        load("web: {level: low}", {"web.level": "loud"})
    with pytest.raises(UsageError, match="web is not a mapping"):
        load("web: 3", {"web.port": 1})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("web: [", "not valid YAML: line 1: "),
        ("\tweb: {}", "not valid YAML: line 1: "),
        ("a: 1\na: 2", "not valid YAML: line 2: key a is given twice"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML: line 1: could not determine a constructor"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        ("a: 5\nb: \x00", "not valid YAML: line 2: the character U+0000 is not allowed"),
        ("{" * 5000, "not valid YAML"),
        ("[" * 100_000, "not valid YAML"),
        ("2026-13-45: 1", "not valid YAML"),
        ("x" * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_broken_yaml_is_reported_in_one_line(load: Load, text: str | bytes, problem: str) -> None:
    with pytest.raises(BadInput, match=re.escape(problem)) as caught:
        load(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "reason"), [("none.yaml", "No such file or directory"), ("", "Is a directory")])
def test_unreadable_file_is_reported(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(Unavailable, match=re.escape(f"cannot read config {tmp_path / name}: {reason}")):
        reader.load(Config, tmp_path / name)


@pytest.mark.parametrize(("text", "code"), [("webs: {}", 2), ("[", 1)])
def test_wrong_key_exits_2_and_broken_file_1(load: Load, text: str, code: int) -> None:
    with pytest.raises(GpufragError) as caught:
        load(text)
    assert caught.value.exit_code == code
