"""PYTORCH_CUDA_ALLOC_CONF as torch reads it, and the sizes that follow."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import BadInput
from gpufrag.model.settings import (
    INTERVALS,
    MIB,
    Settings,
    infer_release,
    parse_conf,
    parse_recorded,
    parse_release,
    read_conf,
    unknown_options,
    without_choices,
)
from strategies import JSON


def table(*named: int, rest: int = 0) -> tuple[int, ...]:
    return named + (rest,) * (INTERVALS - len(named))


# What torch 2.13 answers for the start of each interval.
DIVISIONS = {
    "4": table(rest=4),
    "[256:1,512:2,>:8]": table(*[1] * 9, 2, rest=8),
    "[256:2,1024:4]": table(*[2] * 9, 0, 4),
    "[>:8]": table(0, rest=8),
    "[4:2,1:4]": table(4, 2, 2),
    "[4:2,>:4,8:1]": table(2, 2, 2, 1, rest=4),
    "[131072:2]": table(rest=2),
    "[ 4 : 0 , > : 2 ]": table(0, 0, 0, rest=2),
}


@pytest.mark.parametrize("value", DIVISIONS)
def test_divisions_are_read_as_torch_reads_them(value: str) -> None:
    assert parse_conf(f"roundup_power2_divisions:{value}").roundup_power2_divisions == DIVISIONS[value]


def test_all_keys_that_change_sizes_are_read() -> None:
    text = (
        "large_segment_size_mb:40, max_split_size_mb:64,max_non_split_rounding_mb : 80,backend:native,"
        "garbage_collection_threshold:0.6,expandable_segments:True,per_process_memory_fraction:0.5"
    )
    assert parse_conf(text) == Settings(64 * MIB, 80 * MIB, table(), 0.6, True, 40 * MIB, 0.5)


@pytest.mark.parametrize(
    ("value", "reserve"),
    [("0.5", 0.5), ("3.5G", 3584 * MIB), ("1e-3", 0.001), ("512M", None), ("0", None), ("1e9", None)],
)
def test_reserve_is_read_as_torch_reads_it(value: str, reserve: int | float | None) -> None:
    text = f"expandable_segments_reserve:{value}"
    assert parse_conf(text).expandable_segments_reserve == reserve
    assert unknown_options(text) == ([text] if reserve is None else [])


def test_non_split_rounding_defaults_to_a_large_segment() -> None:
    assert parse_conf("large_segment_size_mb:40").max_non_split_rounding == 40 * MIB


@pytest.mark.parametrize(
    "text",
    [
        *(f"max_split_size_mb:{size}" for size in ("10", "-1", "64.5", "1_000", "\u0666\u0664")),
        "max_split_size_mb:64,large_segment_size_mb:80",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:10",
        *(f"roundup_power2_divisions:{d}" for d in ("0", "3", "1_6", "[0:2]", "[3:2]", "[4:3]", "[]", "[4:2")),
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:1",
        "expandable_segments:true",
        "per_process_memory_fraction:1.5",
    ],
)
def test_invalid_value_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="allocator setting"):
        parse_conf(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segment:True", "did you mean expandable_segments?"),
        ("max_split_size_mb", "not of the form key:value"),
        ("backend:native,,", "not of the form key:value"),
        ("roundup_power2_divisions:[256:1,>:2],colour:red", "no allocator setting 'colour'"),
        ("backend:cudaMallocAsync", "supports only native"),
        ("backend:fast", "not a value that torch accepts"),
        ("release_lock_on_cudamalloc:maybe", "not a value that torch accepts"),
        ("pinned_num_register_threads:True", "not a value that torch accepts"),
        ("max_split_size_mb:1", "must be 20 or more"),
    ],
)
def test_ineffective_or_invalid_setting_raises(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        read_conf(text)


def test_known_keys_pass() -> None:
    text = "roundup_power2_divisions:[256:1,512:2,>:8], backend:native,pinned_use_background_threads:True"
    assert read_conf(text).roundup_power2_divisions[9] == 2


@pytest.mark.parametrize("text", ["", " ", "release_lock_on_cudamalloc:True"])
def test_no_choice_is_torchs_defaults(text: str) -> None:
    assert read_conf(text) == Settings()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("max_split_size_mb:64, pinned_use_background_threads:True,roundup_power2_divisions:[1:2,>:4],backend:native",
         "pinned_use_background_threads:True,backend:native"),
        ("per_process_memory_fraction:0.5,expandable_segments:True", "per_process_memory_fraction:0.5"),
        ("", ""),
        ("max_split_size_mb:64,future_option:1", "future_option:1"),
    ],
)  # fmt: skip
def test_without_choices_keeps_neutral_options(text: str, kept: str) -> None:
    assert without_choices(text) == kept


def test_unknown_options_are_listed() -> None:
    text = "max_split_size_mb:64,backend:native,new:[1:2,3:4],pinned_num_register_threads:x"
    assert unknown_options(text) == ["new:[1:2,3:4]", "pinned_num_register_threads:x"]
    assert unknown_options("") == []


@pytest.mark.parametrize(
    ("divisions", "request_size", "size"),
    [(4, 1200, 1536), (4, 2049, 2560), (4, 3 * MIB - 5, 3 * MIB), (4, 2 * MIB + 1, 2 * MIB + MIB // 2), (1, 513, 1024)],
)
def test_request_is_rounded_to_the_next_division(divisions: int, request_size: int, size: int) -> None:
    assert Settings(roundup_power2_divisions=table(rest=divisions)).round(request_size) == size


@given(st.integers(0, 40), st.sampled_from([0, 1, 2, 4, 16]), st.integers(0, 1 << 20))
def test_rounding_never_loses_bytes_and_is_idempotent(power: int, divisions: int, more: int) -> None:
    settings = Settings(roundup_power2_divisions=table(rest=divisions))
    request = (1 << power) + more
    size = settings.round(request)
    assert size >= max(request, 512)
    assert size % 512 == 0
    assert settings.round(size) == size


TABLES = st.lists(st.sampled_from((0, 1, 2, 4, 8, 16)), min_size=INTERVALS, max_size=INTERVALS).map(tuple)


@given(TABLES, st.integers(0, 1 << 37))
def test_largest_request_fits_and_the_next_does_not(divisions: tuple[int, ...], size: int) -> None:
    settings = Settings(roundup_power2_divisions=divisions)
    request = settings.largest_request(size)
    if size < 512:
        assert request == 0
    else:
        assert settings.round(request) <= size < settings.round(request + 1)


@pytest.mark.parametrize(
    ("size", "mebibytes"),
    [(512, 2), (1 * MIB, 2), (1 * MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 512, 12)],
)
def test_segment_size_follows_the_block(size: int, mebibytes: int) -> None:
    assert Settings().segment_size(size) == mebibytes * MIB


def test_segment_size_for_medium_blocks_is_a_setting() -> None:
    settings = Settings(large_segment_size=64 * MIB)
    assert (settings.segment_size(2 * MIB), settings.page_size(small=False)) == (64 * MIB, 64 * MIB)
    assert (settings.segment_size(512), settings.page_size(small=True)) == (2 * MIB, 2 * MIB)


def test_recorded_setting_wins_over_its_text() -> None:
    recorded = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,large_segment_size_mb:40", "max_split_size": -1}
    assert parse_recorded(recorded) == parse_conf("large_segment_size_mb:40")


def test_recorded_table_is_keyed_by_mebibytes() -> None:
    recorded = {"roundup_power2_divisions": {"1": 1, "4": 2, "32768": 8}}
    assert parse_recorded(recorded).roundup_power2_divisions == (1, 0, 2, *[0] * 12, 8)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_split_size", "wide"),
        ("max_split_size", float("inf")),
        ("expandable_segments", "False"),
        ("garbage_collection_threshold", 2),
        ("roundup_power2_divisions", [1, 2]),
        ("roundup_power2_divisions", {"1": 3}),
        ("PYTORCH_CUDA_ALLOC_CONF", ["max_split_size_mb:64"]),
    ],
)
def test_recorded_value_of_wrong_kind_is_refused(key: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"allocator_settings of the snapshot: {key}"):
        parse_recorded({key: value})


@given(st.dictionaries(st.sampled_from(["max_split_size", "roundup_power2_divisions", "expandable_segments"]), JSON))
def test_arbitrary_records_are_read_or_refused(recorded: dict[str, Any]) -> None:
    try:
        settings = parse_recorded(recorded)
    except BadInput:
        assert recorded
    else:
        assert settings.round(1) == 512


@pytest.mark.parametrize(("torch", "divisions"), [((2, 9), 8), ((2, 10), 4)])
def test_rest_of_a_roundup_list_follows_the_release(torch: tuple[int, int], divisions: int) -> None:
    conf = parse_conf("roundup_power2_divisions:[64:4,>:8]", torch)
    assert conf.roundup_power2_divisions == (4,) * 6 + (divisions,) + (8,) * 9


@pytest.mark.parametrize(("torch", "rounded"), [((2, 3), 1_000_001), ((2, 4), 1_000_448)])
def test_one_division_rounds_nothing_before_2_4(torch: tuple[int, int], rounded: int) -> None:
    settings = parse_conf("roundup_power2_divisions:[1:1]", torch)
    assert settings.round(1_000_001) == rounded
    assert settings.largest_request(rounded) == rounded


@pytest.mark.parametrize(
    ("keys", "release"),
    [
        ({}, None),
        ({"device_traces": []}, "2.2"),
        ({"device_traces": [], "allocator_settings": {}}, "2.4"),
        ({"device_traces": [], "external_annotations": []}, "2.8"),
        ({"device_traces": [[{"user_metadata": ""}]]}, "2.11"),
        ({"device_traces": [[{"user_metadata": "", "pool_id": (0, 0)}]]}, "2.12"),
        ({"allocator_settings": {"max_cached_size": 0}}, "2.13"),
        ({"host_segments": []}, "2.15"),
    ],
)
def test_release_is_inferred_from_the_keys(keys: dict[str, Any], release: str | None) -> None:
    assert infer_release(keys) == release


@pytest.mark.parametrize("text", ["", "2", "3.1", "2.x", "2.1234", 2.11, None])
def test_release_of_another_form_is_refused(text: Any) -> None:
    with pytest.raises(BadInput, match="is not a release of torch"):
        parse_release(text)


def test_release_may_name_its_build() -> None:
    assert parse_release("2.13.0+cu130") == (2, 13)
