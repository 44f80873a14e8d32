"""PYTORCH_CUDA_ALLOC_CONF as users write it."""

from __future__ import annotations

import pytest

from gpufrag.errors import BadInput
from gpufrag.model.settings import Settings, read_conf, unknown_options, without_choices


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
    with pytest.raises(BadInput) as caught:
        read_conf(text)
    assert message in str(caught.value)


def test_known_keys_pass() -> None:
    text = "roundup_power2_divisions:[256:1,512:2,>:8], backend:native,pinned_use_background_threads:True"
    assert read_conf(text).roundup_power2_divisions[9] == 2


@pytest.mark.parametrize("text", ["", " ", "release_lock_on_cudamalloc:True"])
def test_no_choice_is_torchs_defaults(text: str) -> None:
    assert read_conf(text) == Settings()


def test_without_choices_keeps_neutral_options() -> None:
    text = "max_split_size_mb:64, pinned_use_background_threads:True,roundup_power2_divisions:[1:2,>:4],backend:native"
    assert without_choices(text) == "pinned_use_background_threads:True,backend:native"
    assert without_choices("per_process_memory_fraction:0.5,expandable_segments:True") == (
        "per_process_memory_fraction:0.5"
    )
    assert without_choices("") == ""
    assert without_choices("max_split_size_mb:64,future_option:1") == "future_option:1"


def test_unknown_options_are_listed() -> None:
    assert unknown_options("max_split_size_mb:64,backend:native,new:[1:2,3:4],pinned_num_register_threads:x") == [
        "new:[1:2,3:4]",
        "pinned_num_register_threads:x",
    ]
    assert unknown_options("") == []
