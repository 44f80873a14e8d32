"""The settings of sidecar, web config file, restarter and mixin, and the page generated from them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufrag.config import reader, reference, schema, sidecar
from gpufrag.config.schema import Setting
from gpufrag.config.sidecar import FolderSettings, NvmlSettings, ServeConfig, WebSettings
from gpufrag.errors import UsageError
from gpufrag.mixin.config import Config as MixinConfig
from gpufrag.restarter import settings as restarter
from gpufrag.restarter.settings import RestarterConfig
from gpufrag.web.config import WebConfig
from helpers import TESTS, kept

CONFIGS: dict[str, type[Any]] = {
    "serve": ServeConfig,
    "web": WebConfig,
    "restarter": RestarterConfig,
    "mixin": MixinConfig,
}


def leaves(kind: type[Any], above: str = "") -> Iterator[tuple[str, Setting]]:
    for one in schema.settings(kind).values():
        if one.section is None:
            yield above + one.name, one
        else:
            yield from leaves(one.section, f"{above}{one.name}.")


ALL = [(kind, key, one) for kind in CONFIGS.values() for key, one in leaves(kind)]


@pytest.mark.parametrize(("kind", "key", "one"), ALL, ids=lambda value: value if isinstance(value, str) else "")
def test_setting_has_documentation_and_a_range(kind: type[Any], key: str, one: Setting) -> None:
    assert one.doc.endswith(".")
    if one.base in (int, float):
        assert (one.meta.ge, one.meta.gt) != (None, None)
        assert (one.meta.le, one.meta.lt) != (None, None)


RANGES = [(kind, key, one) for kind, key, one in ALL if one.meta.ge is not None]


@pytest.mark.parametrize(("kind", "key", "one"), RANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_number_beyond_its_range_is_refused(kind: type[Any], key: str, one: Setting) -> None:
    for value in (one.meta.ge - 1, one.meta.le * 2):
        with pytest.raises(UsageError, match=re.escape(key)):
            reader.load(kind, None, {key: value})


@pytest.mark.parametrize("kind", [ServeConfig, RestarterConfig, MixinConfig])
def test_default_is_in_its_range(kind: type[Any]) -> None:
    defaults = {key: one.default for key, one in leaves(kind) if one.default is not None}
    shown = {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}
    assert reader.load(kind, None, shown) == kind()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("web: {request_timeout: 7s}", "longer than folder.deadline (5.00 s) + nvml.deadline (2.00 s)"),
        (
            "{web: {request_timeout: 5s}, nvml: {enabled: false}}",
            "(5.00 s) must be longer than folder.deadline (5.00 s), or",
        ),
        ("folder: {max_total_size: 1KiB}", "folder.max_file_size is larger than folder.max_total_size"),
    ],
)
def test_serve_settings_that_contradict_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "serve.yaml").write_text(text)
    with pytest.raises(UsageError, match=re.escape(problem)):
        sidecar.load(tmp_path / "serve.yaml")


def test_disabled_nvml_takes_no_time_of_a_scrape() -> None:
    found = ServeConfig(FolderSettings(deadline=1.0), WebSettings(request_timeout=2.0), NvmlSettings(enabled=False))
    assert found.web.request_timeout == 2.0


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"policy": {"namespaces": "ml"}}, "policy.namespaces must be a list such as [a, b]"),
        ({"policy": {"namespaces": ["*"]}}, "policy.namespaces: '*' is not a namespace name"),
        ({"policy": {"namespaces": [""]}}, "policy.namespaces: '' is not a namespace name"),
        ({"policy": {"namespaces": ["ml/../x"]}}, "is not a namespace name"),
        ({"circuit": {"config_map": "../secrets/x"}}, "circuit.config_map: '../secrets/x' is not an object name"),
        ({"circuit": {"namespace": ""}}, "circuit.namespace: '' is not a namespace name"),
        ({"prometheus": {"labels": ['a="b"}']}}, "is not a label name"),
        ({"prometheus": {"url": "ftp://x"}}, "prometheus.url is not a server address"),
        ({"prometheus": {"url": "http://"}}, "is not a server address"),
        ({"prometheus": {"url": "http://x y:9090"}}, "is not a server address"),
        ({"prometheus": {"url": "http://x:nine"}}, "is not a server address"),
        ({"prometheus": {"url": "http://x/?query=up"}}, "is not a server address"),
        ({"prometheus": {"url": "http://user:hunter2@x:9090"}}, "contains a user or a password"),
        ({"web": {"listen_address": ":1"}, "metrics_web": {"listen_address": ":1"}}, "choose two ports"),
    ],
)
def test_restarter_setting_that_cannot_work_is_refused(tmp_path: Path, raw: Any, problem: str) -> None:
    (tmp_path / "restarter.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        restarter.load(tmp_path / "restarter.yaml")
    assert "hunter2" not in str(caught.value)


def test_help_shows_each_flag_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    reference.add_flags(parser, ServeConfig)
    text = " ".join(parser.format_help().split())
    for expected in (
        "--detail, --no-detail also export metrics that no bundled alert uses (default: on)",
        "--web.listen-address TEXT address to listen on: host:port, [v6]:port, or :port for every interface (de",
        "--folder PATH folder where the agents write their samples",
    ):
        assert expected in text


def test_flags_given_are_returned_by_key() -> None:
    parser = argparse.ArgumentParser()
    reference.add_flags(parser, ServeConfig)
    options = parser.parse_args(["--no-nvml", "--folder", "x", "--log.level", "debug"])
    expected = {"nvml.enabled": False, "folder.path": Path("x"), "log.level": "debug"}
    assert reference.flag_values(options, ServeConfig) == expected
    with pytest.raises(SystemExit):
        parser.parse_args(["--folder", ""])


HEAD = """Config files are YAML. Write sizes as `512MiB`, and durations as `250ms`, `10s` or `1h30m`. Paths are relative
to the folder of the config file. Flags override the file.
"""
PAGES = {
    "configuration": f"""# Configuration of the sidecar

Look up the keys of the sidecar's config file and of the web config file. The
[restarter](configuration-restarter.md) and the [rules](configuration-mixin.md) have their own pages.

    gpufrag check-config gpufrag.yaml        # check the file before you use it
    gpufrag serve --config gpufrag.yaml

{HEAD}
## The sidecar's config file

{{serve}}
## The web config file
This file adds TLS and passwords to the sidecar or the restarter. Its format is that of other Prometheus exporters. Pass
it with `gpufrag serve --web.config.file FILE`, or with the key `web.config_file` of either config file. Check it with
`gpufrag check-config --web FILE`.

{{web}}""",
    "configuration-restarter": f"""# Configuration of the restarter

Look up the keys of the restarter's config file. [Restarter](restarter.md#set-it-up-in-kubernetes) has a short example.

    gpufrag restarter --config restarter.yaml --check    # check the file before you use it
    gpufrag restarter --config restarter.yaml

{HEAD}
{{restarter}}""",
    "configuration-mixin": f"""# Configuration of rules and dashboards

Look up the settings of Prometheus rules, alerts and Grafana dashboards. Put them into a config file, or pass each one
as `--set KEY=VALUE`:

    gpufrag mixin build --out mixin --config mixin.yaml --set thresholds.fragmentation_ratio=6

{HEAD}
{{mixin}}""",
}


@pytest.mark.parametrize("name", PAGES)
def test_configuration_page_is_up_to_date(name: str) -> None:
    flags = {"restarter": restarter.FLAGS, "mixin": ()}
    tables = {program: reference.markdown(kind, flags.get(program)) for program, kind in CONFIGS.items()}
    kept(TESTS.parent / "docs" / f"{name}.md", PAGES[name].format(**tables))
