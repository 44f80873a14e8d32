"""PYTORCH_CUDA_ALLOC_CONF as torch 2.13 itself reads it: what it takes, what it refuses."""

from __future__ import annotations

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.settings import INTERVALS, MIB, Settings, parse_conf, refuse_unknown_keys


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


def test_an_unsplit_block_may_be_larger_by_one_large_segment() -> None:
    assert parse_conf("large_segment_size_mb:40").max_non_split_rounding == 40 * MIB


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:10",
        "max_split_size_mb:-1",
        "max_split_size_mb:64.5",
        "max_split_size_mb:64,large_segment_size_mb:80",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:10",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[0:2]",
        "roundup_power2_divisions:[3:2]",
        "roundup_power2_divisions:[4:3]",
        "roundup_power2_divisions:[]",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:1",
        "expandable_segments:true",
        "per_process_memory_fraction:1.5",
    ],
)
def test_what_torch_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="allocator setting"):
        parse_conf(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("expandable_segment:True", "did you mean expandable_segments?"),
        ("max_split_size_mb", "not of the form key:value"),
        ("backend:native,,", "not of the form key:value"),
        ("roundup_power2_divisions:[256:1,>:2],colour:red", "no allocator setting 'colour'"),
    ],
)
def test_an_unknown_key_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        refuse_unknown_keys(text)
    assert told in str(caught.value)


def test_known_keys_pass() -> None:
    refuse_unknown_keys("roundup_power2_divisions:[256:1,512:2,>:8], backend:native,pinned_use_background_threads:True")
