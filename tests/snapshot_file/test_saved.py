"""What a file tells beside its heap."""

import json
import pickle

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.allocatable import Driver
from gpufrag.model.settings import parse_conf
from gpufrag.snapshot_file import load, read
from helpers import SNAPSHOTS, TESTS


@pytest.fixture
def saved_as(tmp_path):
    """saved_as(value) -> the path of its pickle."""

    def save(value):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(value, 4))
        return path

    return save


def test_a_recorded_case_brings_driver_and_settings(golden):
    saved = read(TESTS / "golden" / "train-cap4-expandable.json.gz")
    case = golden("train-cap4-expandable")
    assert saved.driver == case.driver
    assert saved.heap == case.heap
    assert saved.heap.settings.expandable_segments
    assert saved.knows_settings


def test_no_limit_is_recorded_as_0():
    assert read(TESTS / "golden" / "train-default.json.gz").driver.limit is None


def test_what_torch_dumps_knows_no_driver():
    saved = read(SNAPSHOTS / "default-0.pickle.gz")
    assert saved.driver == Driver()
    assert saved.knows_settings


def test_a_bare_list_of_segments_takes_the_settings_it_is_given(saved_as):
    path = saved_as(load(SNAPSHOTS / "default-0.pickle.gz")["segments"])
    assert not read(path).knows_settings
    saved = read(path, parse_conf("max_split_size_mb:64"))
    assert saved.knows_settings
    assert saved.heap.settings.max_split_size == 64 << 20


def test_what_the_file_records_wins_over_what_is_given():
    saved = read(SNAPSHOTS / "exp4g-0.pickle.gz", parse_conf("expandable_segments:False"))
    assert saved.heap.settings.expandable_segments


@pytest.mark.parametrize("value", [-1, 1.5, "8GiB", True, 1 << 63])
def test_a_driver_figure_that_is_no_size(tmp_path, value):
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"segments": [], "driver_free": value}))
    with pytest.raises(BadInput, match=r"case\.json: its driver_free is no size in bytes"):
        read(path)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"driver_free": 5, "driver_total": 4}, "its driver_free is 5, more than its driver_total, 4"),
        ({"settings": 5}, "its allocator settings are a int, not a mapping"),
        ({"allocator_settings": ["expandable_segments"]}, "its allocator settings are a list, not a mapping"),
    ],
)
def test_what_contradicts_itself_or_is_of_another_form_is_not_passed_over(tmp_path, keys, told):
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"segments": [], **keys}))
    with pytest.raises(BadInput, match=told):
        read(path)


@pytest.mark.parametrize(
    "value", [None, 7, "text", [7], {"segments": 7}, {"other": []}, [{}], [[]], {"segments": [None]}]
)
def test_what_is_no_snapshot_is_refused_with_the_name_of_the_file(saved_as, value):
    path = saved_as(value)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def _laughs():
    """A list that weighs a few hundred bytes in a pickle and has 2^60 elements."""
    nest = []
    for _ in range(60):
        nest = [nest, nest]
    return nest


@pytest.mark.parametrize("key", ["device", "stream", "total_size", "segment_type", "segment_pool_id", "blocks"])
def test_a_hostile_value_in_a_segment_is_refused_at_once(saved_as, key):
    segments = load(SNAPSHOTS / "default-0.pickle.gz")["segments"]
    segments[0][key] = _laughs()
    _assert_refused_shortly(saved_as(segments))


@pytest.mark.parametrize("key", ["address", "size", "requested_size", "state"])
def test_a_hostile_value_in_a_block_is_refused_at_once(saved_as, key):
    segments = load(SNAPSHOTS / "default-0.pickle.gz")["segments"]
    segments[0]["blocks"][0][key] = _laughs()
    _assert_refused_shortly(saved_as(segments))


@pytest.mark.parametrize("key", ["max_split_size", "garbage_collection_threshold", "roundup_power2_divisions"])
def test_a_hostile_setting_is_refused_at_once(saved_as, key):
    _assert_refused_shortly(saved_as({"segments": [], "allocator_settings": {key: _laughs()}}))


def _assert_refused_shortly(path):
    with pytest.raises(BadInput) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
