"""A setting that could not work is told when the config is read, by its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from gpufrag.config.sidecar import Range
from gpufrag.config.yaml_record import Count, Seconds
from gpufrag.errors import UsageError
from gpufrag.restarter import settings
from gpufrag.restarter.bounds import BOUNDS
from gpufrag.restarter.settings import MOST_PER_DAY, RestarterConfig

SUBJECTS = ("policy", "restart", "checkpoint", "prometheus", "circuit", "process", "slurm")


def load(tmp_path: Path, raw: Any) -> RestarterConfig:
    path = tmp_path / "restarter.yaml"
    path.write_text(yaml.safe_dump(raw))
    return settings.load(path)


def numbers() -> Iterator[tuple[str, str]]:
    for subject in SUBJECTS:
        kind = type(getattr(RestarterConfig(), subject))
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            if hints[field.name] in (Count, Seconds, Seconds | None):
                yield subject, field.name


def test_every_number_has_bounds_and_its_default_is_within() -> None:
    assert RestarterConfig().policy.max_per_day <= MOST_PER_DAY
    assert set(numbers()) - {("policy", "max_per_day")} == {(one, key) for one in BOUNDS for key in BOUNDS[one]}


@pytest.mark.parametrize(("subject", "key", "bounds"), [(s, k, b) for s in BOUNDS for k, b in BOUNDS[s].items()])
def test_beyond_its_bounds_a_number_is_refused(tmp_path: Path, subject: str, key: str, bounds: Range) -> None:
    whole = type(getattr(getattr(RestarterConfig(), subject), key)) is int
    for value in (bounds.least, bounds.most):
        load(tmp_path, {subject: {key: int(value) if whole else value}})
    with pytest.raises(UsageError, match=rf"{subject}\.{key} is .*belongs here"):
        load(tmp_path, {subject: {key: int(bounds.most) + 1}})


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"web": {"max_requests": 10**8}}, r"web\.max_requests"),
        ({"metrics_web": {"request_timeout": "999d"}}, r"metrics_web\.request_timeout"),
        ({"queue": 10**9}, "queue is 1000000000"),
        ({"policy": {"namespaces": "ml"}}, r"policy\.namespaces is a text: a list belongs here"),
        ({"policy": {"namespaces": ["*"]}}, "no word or pattern"),
        ({"policy": {"namespaces": [""]}}, "policy.namespaces has ''"),
        ({"policy": {"namespaces": ["ml/../x"]}}, "name each namespace"),
        ({"circuit": {"config_map": "../secrets/x"}}, r"circuit\.config_map"),
        ({"circuit": {"namespace": ""}}, r"circuit\.namespace"),
        ({"prometheus": {"labels": ['a="b"}']}}, "names of labels"),
        ({"prometheus": {"url": "ftp://x"}}, "no address"),
        ({"prometheus": {"url": "http://"}}, "no address"),
        ({"prometheus": {"url": "http://x y:9090"}}, "no address"),
        ({"prometheus": {"url": "http://x:nine"}}, "no address"),
        ({"prometheus": {"url": "http://x/?query=up"}}, "no address"),
    ],
)
def test_what_could_not_work_is_refused(tmp_path: Path, raw: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load(tmp_path, raw)


def test_a_password_in_an_address_is_refused_and_not_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds a user or a password") as refusal:
        load(tmp_path, {"prometheus": {"url": "http://user:hunter2@x:9090"}})
    assert "hunter2" not in str(refusal.value)
