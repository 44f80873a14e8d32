"""The config file: what is read, and one line for each thing that is wrong."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import pytest

from gpufrag.config import sidecar as config
from gpufrag.config.sidecar import ServeConfig
from gpufrag.errors import BadInput, GpufragError, Unavailable, UsageError

Load = Callable[[str | bytes], ServeConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str | bytes) -> ServeConfig:
        path = tmp_path / "gpufrag.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load(path)

    return load_text


def test_an_empty_file_is_all_defaults(load: Load) -> None:
    assert load("") == load("# nothing\n") == load("{}") == ServeConfig()


def test_every_key_is_read(load: Load, tmp_path: Path) -> None:
    found = load(
        """
        folder: {path: samples, max_processes: 10, max_file_size: 2MiB, max_total_size: 1GiB, last_words: 1h30m, deadline: 250ms}
        web:
          listen_address: "[::1]:9000"
          config_file: /etc/web.yml
          max_requests: 2
          max_connections: 3
          max_header_size: 4KiB
          request_timeout: 20s
          keep_alive: 1m
          drain_timeout: 1
        nvml: {enabled: false, deadline: 1.5s}
        log: {level: debug}
        """  # noqa: E501
    )
    assert found.folder == config.FolderSettings(tmp_path / "samples", 10, 2 << 20, 1 << 30, 5400.0, 0.25)
    assert found.web == config.WebSettings("[::1]:9000", Path("/etc/web.yml"), 2, 3, 4096, 20.0, 60.0, 1.0)
    assert (found.nvml, found.log) == (config.NvmlSettings(False, 1.5), config.LogSettings("debug"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("web: {prot: 1}", "web.prot is not a key; known are config_file, drain_timeout, "),
        ("web: {max_request: 1}", "web.max_request is not a key; did you mean max_requests?"),
        ("webs: {}", "webs is not a key; did you mean web?"),
        ("1: {}", "1 is not a key; known are control, folder, log, metrics, nvml, web"),
        ("web: {max_requests: 0}", "web.max_requests is a number: a whole number from 1 up belongs here"),
        ("web: {max_requests: true}", "web.max_requests is true or false: a whole number"),
        ("web: {max_requests: 1.5}", "web.max_requests is a number: a whole number"),
        ("web: {max_requests: many}", "web.max_requests is a text: a whole number"),
        ("web: {keep_alive: soon}", "web.keep_alive: 'soon' is not a duration"),
        ("web: {keep_alive: 0s}", "web.keep_alive is a text: it must be above 0"),
        ("web: {keep_alive: -1}", "web.keep_alive: '-1' is not a duration"),
        ("web: {keep_alive: .inf}", "web.keep_alive: 'inf' is not a duration"),
        ("folder: {max_total_size: 4096PiB}", "folder.max_total_size is 4096 PiB: from 1.00 KiB to 16.0 GiB belongs"),
        ("web: {keep_alive: [1s]}", "web.keep_alive is a list: write 10s"),
        ("folder: {max_file_size: 4M}", "folder.max_file_size: '4M' can mean two sizes"),
        ("folder: {path: 3}", "folder.path is a number: a path belongs here"),
        ("nvml: {enabled: 'yes please'}", "nvml.enabled is a text: true or false belongs here"),
        ("log: {level: loud}", "log.level is 'loud': one of debug, info, warning, error belongs here"),
        (
            "web: {request_timeout: 7s}",
            "(7.00 s) is not above folder.deadline (5.00 s) + nvml.deadline (2.00 s): ",
        ),
        (
            "{web: {request_timeout: 5s}, nvml: {enabled: false}}",
            "(5.00 s) is not above folder.deadline (5.00 s): where",
        ),
        ("web: 9836", "web is a number: a mapping of keys belongs here"),
        ("web:", "web is empty: a mapping of keys belongs here"),
        ("- web", "the whole is a list"),
        ("nonsense", "the whole is a text"),
    ],
)
def test_a_wrong_key_or_value_is_told_with_its_place(load: Load, text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(text)
    assert told in str(caught.value)
    assert "gpufrag.yaml: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("web: [", "not YAML: line 1: "),
        ("\tweb: {}", "not YAML: line 1: "),
        ("a: 1\na: 2", "not YAML: line 2: key a is given twice"),
        ("!!python/object/apply:os.system ['true']", "not YAML: line 1: could not determine a constructor"),
        (b"\xff\xfe\x00", "not YAML: it is no UTF-8 text"),
        ("a: 5\nb: \x00", "not YAML: line 2: U+0000, a character that may not be there"),
        ("{" * 5000, "not YAML"),
        ("[" * 100_000, "not YAML"),
        ("2026-13-45: 1", "not YAML"),
        ("x" * (2 << 20), "over 1 MiB: not a config file"),
    ],
)
def test_what_is_not_yaml_is_told_in_one_line(load: Load, text: str | bytes, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(Unavailable, match=f"{re.escape(str(path))}: {told}; give a file"):
            config.load(path)


def test_usage_is_2_and_failure_1(load: Load) -> None:
    codes = []
    for text in ("webs: {}", "["):
        with pytest.raises(GpufragError) as caught:
            load(text)
        codes.append(caught.value.exit_code)
    assert codes == [2, 1]


def numbers(record: type) -> set[str]:
    """The fields of a subject that hold a number."""
    return {field.name for field in fields(record) if type(getattr(record(), field.name)) in (int, float)}


SUBJECTS = {field.name: type(getattr(ServeConfig(), field.name)) for field in fields(ServeConfig)}
PLACES = [(name, key) for name, record in SUBJECTS.items() for key in config.RANGES.get(record, ())]


@pytest.mark.parametrize("record", SUBJECTS.values())
def test_every_number_has_a_range(record: type) -> None:
    assert numbers(record) == set(config.RANGES.get(record, ()))


@pytest.mark.parametrize(("subject", "key"), PLACES)
def test_a_number_out_of_its_range_is_refused(load: Load, subject: str, key: str) -> None:
    least, most, show = config.RANGES[SUBJECTS[subject]][key]
    below = [] if least == 1 else [least / 2]  # that a count is no 0 is told otherwise
    for value in [*below, int(most * 2)]:
        with pytest.raises(UsageError) as caught:
            load(f"{subject}: {{{key}: {value}}}")
        told = f"gpufrag.yaml: {subject}.{key} is {show(value)}: from {show(least)} to {show(most)} belongs here"
        assert str(caught.value).endswith(told)


def test_a_subject_of_another_program_has_the_same_ranges() -> None:
    @dataclass(frozen=True)
    class Other:
        inward: config.WebSettings

    with pytest.raises(UsageError, match=r"inward\.max_requests is 10001: from 1 to 10000 belongs here"):
        config.require_ranges(Other(config.WebSettings(max_requests=10_001)))


def test_a_file_that_could_not_be_read_within_the_whole_is_refused(load: Load) -> None:
    with pytest.raises(UsageError, match="max_file_size is above folder"):
        load("folder: {max_total_size: 1KiB}")


def test_a_source_that_is_off_takes_no_time(load: Load) -> None:
    found = load("{web: {request_timeout: 2s}, folder: {deadline: 1s}, nvml: {enabled: false}}")
    assert (found.web.request_timeout, found.nvml.enabled) == (2.0, False)


def test_every_field_says_what_it_is() -> None:
    classes = [node for node in ast.parse(inspect.getsource(config)).body if isinstance(node, ast.ClassDef)]
    for record in classes:
        if record.name in ("ServeConfig", "Range"):  # of the one, the fields are subjects with docstrings of their own
            continue
        body = record.body[1:]
        documented = [
            field.target.id
            for field, text in pairwise(body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ]
        assert documented == [field.name for field in fields(getattr(config, record.name))]
