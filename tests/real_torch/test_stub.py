"""The CUDA stub: what it lacks, and its errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cuda import build, releases

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # the first test downloads torch
NEWEST_TWO = releases.RELEASES[-2:]
NOT_NEEDED = {  # sharing memory between processes, and dependencies between the nodes of a graph
    "cudaGraphNodeGetDependencies",
    "cudaIpcCloseMemHandle",
    "cudaIpcGetMemHandle",
    "cudaIpcOpenMemHandle",
}


@pytest.fixture
def stubs() -> Path:
    """The folder of the newest release's harness and its stubs."""
    try:
        return build.harness(releases.NEWEST).parent
    except releases.Unavailable as why:
        pytest.skip(str(why))


def call(stubs: Path, code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code with the stub's libraries as `cuda`, `runtime` and `nvml`."""
    prepare = f"""
import ctypes
cuda = ctypes.CDLL({str(stubs / build.DRIVER)!r}, ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL({str(next(stubs.glob("libcudart.so.*")))!r})
nvml = ctypes.CDLL({str(stubs / build.NVML)!r})
number = ctypes.c_size_t
def malloc(size): return runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), number(size))
def free():
    left, total = number(), number()
    error = runtime.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(total))
    return error or left.value
"""
    environment = {**os.environ, **{f"FAKE_CUDA_{key}": value for key, value in settings.items()}}
    return subprocess.run(
        [sys.executable, "-c", prepare + code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("release", NEWEST_TWO)
def test_allocator_needs_no_function_that_the_stub_lacks(release: str) -> None:
    try:
        missing = build.missing_functions(release, allocator_only=True)
    except releases.Unavailable as why:
        pytest.skip(str(why))
    assert {function for functions in missing.values() for function in functions} <= NOT_NEEDED


def test_unknown_function_reports_its_name_and_fails(stubs: Path) -> None:
    done = call(stubs, "print(runtime.cudaIpcOpenMemHandle(0, 0, 0))")
    assert done.stdout == "801\n"
    assert "cudaIpcOpenMemHandle is not part of the stub" in done.stderr


def test_unknown_function_aborts_on_request(stubs: Path) -> None:
    done = call(stubs, "runtime.cudaIpcOpenMemHandle(0, 0, 0)", ABORT="1")
    assert done.returncode < 0
    assert "cudaIpcOpenMemHandle" in done.stderr


def test_free_memory_follows_sizes_neighbours_and_allocations(stubs: Path) -> None:
    code = "print(free(), malloc(3 << 20), free(), free())"
    done = call(stubs, code, SIZE="1GiB", FREE="900MiB", OTHER="100MiB", GROWTH="10MiB")
    mib = [790, 0, 776, 766]  # 3 MiB take two pages of 2 MiB
    assert done.stdout.split() == [str(figure << 20) for figure in mib]


def test_refusals_apply_to_the_named_calls_only(stubs: Path) -> None:
    code = "print(*[malloc(1 << 20) for _ in range(4)], malloc(3 << 30), free() > 0)"
    done = call(stubs, code, REFUSE="cudaMalloc:2-3,cudaMalloc>2GiB")
    assert done.stdout.split() == ["0", "2", "2", "0", "2", "True"]


@pytest.mark.parametrize("rules", ["cudaMalloc", "cudaMalloc:x", "cudaMalloc>2 apples"])
def test_broken_refusal_rule_is_an_error(stubs: Path, rules: str) -> None:
    done = call(stubs, "malloc(1)", REFUSE=rules)
    assert done.returncode < 0
    assert "FAKE_CUDA_REFUSE: expected" in done.stderr


def test_unsafe_call_invalidates_a_capture(stubs: Path) -> None:
    code = """
stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
runtime.cudaStreamCreate(ctypes.byref(stream))
runtime.cudaStreamBeginCapture(stream, 0)
print(malloc(1), runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)), malloc(1))
"""
    assert call(stubs, code).stdout == "900 901 0\n"


def test_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(releases.Unavailable, match=r"no C\+\+ compiler: install g\+\+ or clang\+\+"):
        build.compiler()
