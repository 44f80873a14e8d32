"""Every code of the installed pynvml is in our table, and our table names nothing that NVML does not have."""

from __future__ import annotations

import re
from pathlib import Path

import pynvml
import pytest

import gpufrag
from gpufrag.errors import Unavailable
from gpufrag.sidecar.nvml_errors import FAULTS, NO_GPU, Fault, NvmlError, unknown

NAMES = {name.removeprefix("NVML_ERROR_") for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
ALL_FAULTS = [*FAULTS.values(), NO_GPU, unknown(77)]


def test_no_error_of_pynvml_is_unmapped() -> None:
    assert NAMES - FAULTS.keys() == set()


def test_no_entry_is_misspelled() -> None:
    newer_than_the_oldest_pynvml = {"GPU_NOT_FOUND", "INVALID_STATE", "RESET_TYPE_NOT_SUPPORTED"}
    assert FAULTS.keys() - NAMES - newer_than_the_oldest_pynvml == set()


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_a_text_is_one_line_without_a_vendor_name_for_the_code(fault: Fault) -> None:
    assert len(fault.text) > 15
    assert not re.search(r"\n|NVML_ERROR|\.$", fault.text)


def test_a_failed_call_is_an_error_of_ours() -> None:
    error = NvmlError(FAULTS["GPU_IS_LOST"])
    assert isinstance(error, Unavailable)
    assert (str(error), error.scope) == (FAULTS["GPU_IS_LOST"].text, FAULTS["GPU_IS_LOST"].scope)


def test_only_one_module_imports_pynvml() -> None:
    package = Path(gpufrag.__file__).parent
    users = [path for path in package.rglob("*.py") if re.search(r"^\s*(import|from) pynvml", path.read_text(), re.M)]
    assert [path.name for path in users] == ["nvml.py"]


def test_it_calls_nothing_that_changes_a_gpu() -> None:
    source = (Path(gpufrag.__file__).parent / "sidecar/nvml.py").read_text()
    called = set(re.findall(r"\bnvml[A-Z]\w+", source)) - {"nvmlInit", "nvmlShutdown", "nvmlMemory_v2"}
    assert called
    assert [name for name in called if not re.match(r"nvml(Device|System)Get", name)] == []
