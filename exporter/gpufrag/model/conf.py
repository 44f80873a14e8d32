"""PYTORCH_CUDA_ALLOC_CONF as a person writes it: what torch would refuse or pass over in silence is told."""

from __future__ import annotations

import re
from difflib import get_close_matches
from reprlib import repr as shown

from ..errors import BadInput
from .settings import CONF_KEYS, Settings, parse_conf

_BOOL, _NUMBER = "True|False", "[0-9]+"
NEUTRAL_KEYS = {
    "backend": "native",
    "graph_capture_record_stream_reuse": _BOOL,
    "pinned_free_catch_all": _BOOL,
    "pinned_max_cached_size_mb": _NUMBER,
    "pinned_max_round_threshold_mb": _NUMBER,
    "pinned_num_register_threads": _NUMBER,
    "pinned_reserve_segment_size_mb": _NUMBER,
    "pinned_use_background_threads": _BOOL,
    "pinned_use_cuda_host_register": _BOOL,
    "pinned_use_hip_host_register": _BOOL,
    "release_lock_on_cudamalloc": _BOOL,
    "release_lock_on_hipmalloc": _BOOL,
    "throw_on_cudamalloc_oom": _BOOL,
}
"""The options that move no block on the GPU, with the form of their values."""
_LIMITING = {"per_process_memory_fraction"}


def read_conf(text: str) -> Settings:
    """Raises BadInput for what torch would not take. No text at all means torch's defaults."""
    if text.strip():
        refuse_unknown_keys(text)
    return parse_conf(text)


def refuse_unknown_keys(text: str) -> None:
    """Raises BadInput for what is no `key:value` of torch (2.14 or older): a typing error would change nothing."""
    for part in _parts(text):
        key, colon, value = (piece.strip() for piece in part.partition(":"))
        if not colon:
            raise BadInput(f"allocator setting {shown(part)} is not of the form key:value")
        if key not in CONF_KEYS:
            _refuse_unless_neutral(key, value)


def without_choices(text: str) -> str:
    """The options of a conf that another choice of how memory is laid out does not replace: unknown ones stay too."""
    replaced = CONF_KEYS.keys() - _LIMITING
    return ",".join(part for part in _parts(text) if part and part.partition(":")[0].strip() not in replaced)


def unknown_options(text: str) -> list[str]:
    """The parts of a conf that torch has taken, and that nothing is known of here."""
    return [part for part in _parts(text) if part and not _is_known(part)]


def _is_known(part: str) -> bool:
    try:
        refuse_unknown_keys(part)
    except BadInput:
        return False
    return True


def _parts(text: str) -> list[str]:
    """`a:1,b:[x:2,y:3]` -> ["a:1", "b:[x:2,y:3]"]."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def _refuse_unless_neutral(key: str, value: str) -> None:
    if key not in NEUTRAL_KEYS:
        near = get_close_matches(key, [*CONF_KEYS, *NEUTRAL_KEYS], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadInput(f"torch has no allocator setting {shown(key)}{hint}")
    if key == "backend" and value == "cudaMallocAsync":
        raise BadInput("allocator setting backend:cudaMallocAsync is the driver's own allocator; only native is known")
    if not re.fullmatch(NEUTRAL_KEYS[key], value):
        raise BadInput(f"allocator setting {key}:{shown(value)} is not of the form that torch takes")
