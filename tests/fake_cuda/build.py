"""Compiles the stubs and the harness, with any C++ compiler, into the cache folder."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from .elf import Symbols, read_symbols
from .releases import Unavailable, allocator_folder, building, cache_folder, minor, torch_folder

SOURCES = Path(__file__).parent / "csrc"
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libm|libz|libdl|libpthread|librt|libutil|libstdc\+\+|libgcc_s|ld-linux.*)\.so|lib(gomp|numa)"
)
DRIVER, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
LIBRARY_OF_PREFIX = (
    ("__cuda", "libcudart."), ("cusparseLt", "libcusparseLt."), ("cusparse", "libcusparse."),
    ("cublasLt", "libcublasLt."), ("cublas", "libcublas."), ("cudnn", "libcudnn."), ("cufft", "libcufft."),
    ("curand", "libcurand."), ("cusolver", "libcusolver."), ("nccl", "libnccl."), ("cuFile", "libcufile."),
    ("nvrtc", "libnvrtc."), ("cupti", "libcupti."), ("nvshmem", "libnvshmem"), ("nvtx", "libnvToolsExt."),
    ("cuda", "libcudart."), ("cu", DRIVER),
)  # fmt: skip
DEVICE_WORK = re.compile(
    r"cu(blas|blasLt|dnn|fft|fftXt|solverDn|sparse)(Set|Destroy)|cublas[SDCZI][a-z]|cublas(GemmEx|GemmStrided|DotEx)"
    r"|cublasLt\w*(Set|Destroy)|cublasLtMatmul$|cudnnBackend(Set|Finalize|Execute|Destroy)"
    r"|cudnn(Convolution|BatchNormalization|Dropout|Restore)|cufftXtExec|cufftSet|cufftDestroy"
    r"|cusolverDn[SDCZX]\w*trf$|cusolverDnXgeqrf$|cudaProfiler|cudaMemcpyToSymbol|cudaKernelSetAttribute"
    r"|nccl(All|Reduce|Broadcast|Bcast|Send|Recv|Group(Start|End)|Comm(Destroy|Abort|Finalize|Register|Deregister))"
)
"""Functions that only order work on the device, or keep a setting: they succeed and do nothing."""


def compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, else the first that is installed. Raises Unavailable."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(shlex.split(name)[0]):
            return shlex.split(name)
    raise Unavailable("cannot compile the CUDA stub: no C++ compiler: install g++ or clang++, or set CXX")


def harness(release: str) -> Path:
    """Return the program that drives the allocator of this release. Builds it, and downloads torch, if necessary."""
    torch = allocator_folder(release) / "torch"
    folder = _target(f"harness-{release}")
    with building(folder) as scratch:
        if scratch is not None:
            symbols = _symbols_of_allocator(release)
            major = _cuda_major(symbols.values())
            _build_core(scratch, major, missing(symbols, major))
            _build_harness(scratch, torch, release, major, symbols["libc10.so"])
    return folder / "harness"


def stubs(release: str) -> Path:
    """Return the folder with a stub for every NVIDIA library of this release's CUDA build."""
    folder = _target(f"stubs-{release}")
    with building(folder) as scratch:
        if scratch is not None:
            symbols = _symbols_of_torch(release)
            major = _cuda_major(symbols.values())
            wanted = missing(symbols, major)
            _build_core(scratch, major, wanted)
            _build_libraries(scratch, major, symbols, wanted)
    return folder


def missing_functions(release: str, allocator_only: bool = False) -> dict[str, dict[str, str | None]]:
    """The functions of NVIDIA's libraries that this release's CUDA build names and the stub lacks, by library."""
    symbols = _symbols_of_allocator(release) if allocator_only else _symbols_of_torch(release)
    return missing(symbols, _cuda_major(symbols.values()))


def _symbols_of_allocator(release: str) -> dict[str, Symbols]:
    libraries = allocator_folder(release) / "torch" / "lib"
    return {name: read_symbols(libraries / name) for name in ("libc10.so", "libc10_cuda.so")}


def _symbols_of_torch(release: str) -> dict[str, Symbols]:
    libraries = torch_folder(release) / "torch" / "lib"
    return {path.name: read_symbols(path) for path in sorted(libraries.glob("lib*.so*"))}


def missing(symbols: Mapping[str, Symbols], major: int) -> dict[str, dict[str, str | None]]:
    """Return the functions that the stub lacks, as {library: {function: version}}.

    Those become functions that report their name and return an error.
    """
    provided = provided_functions(major)
    own = frozenset().union(*(found.exports for found in symbols.values()))
    foreign = foreign_libraries(symbols)
    lacking: dict[str, dict[str, str | None]] = defaultdict(dict)
    for found in symbols.values():
        for symbol in found.imports:
            home = symbol.home if symbol.home in foreign else None
            if symbol.home is None and symbol.name not in own:
                prefixes = (library for prefix, library in LIBRARY_OF_PREFIX if symbol.name.startswith(prefix))
                library = next(prefixes, None) or ("libnvshmem" if "nvshmem" in symbol.name else None)
                home = next((name for name in foreign if library and name.startswith(library)), None)
            if home is not None and symbol.name not in provided:
                lacking[home][symbol.name] = symbol.version
    return dict(lacking)


def foreign_libraries(symbols: Mapping[str, Symbols]) -> list[str]:
    needed = {name for found in symbols.values() for name in found.needed}
    return sorted(name for name in needed - set(symbols) if not SYSTEM_LIBRARIES.match(name))


def provided_functions(major: int) -> frozenset[str]:
    """The functions that the stub's own sources define, for CUDA 12 or 13."""
    folder = _target(f"core-{major}")
    with building(folder) as scratch:
        if scratch is not None:
            _build_core(scratch, major, {})
            _compile(scratch / "libraries.so", [SOURCES / "libraries.cpp"], major, "-shared")
    paths = [folder / DRIVER, folder / NVML, folder / f"libcudart.so.{major}", folder / "libraries.so"]
    return frozenset().union(*(read_symbols(path).exports for path in paths))


def _target(name: str) -> Path:
    """A folder of the cache that changes with the sources, so that old builds are not used."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.rglob("*.*"), Path(__file__)]):
        digest.update(path.read_bytes())
    digest.update(" ".join(compiler()).encode())
    return cache_folder() / "built" / digest.hexdigest()[:12] / name


def _cuda_major(symbols: Iterable[Symbols]) -> int:
    names = {name for found in symbols for name in found.needed if name.startswith("libcudart")}
    return int(names.pop().rsplit(".", 1)[1])


def _build_core(folder: Path, major: int, lacking: Mapping[str, Mapping[str, str | None]]) -> None:
    """libcuda, libcudart and libnvidia-ml, with the functions of `lacking` that belong to them."""
    runtime = f"libcudart.so.{major}"
    _library(folder, DRIVER, major, ["gpu.cpp", "driver.cpp"], lacking.get(DRIVER, {}), [])
    _library(folder, NVML, major, ["nvml.cpp"], lacking.get(NVML, {}), [folder / DRIVER])
    _library(folder, runtime, major, ["runtime.cpp"], lacking.get(runtime, {}), [folder / DRIVER], version=runtime)


def _build_libraries(
    folder: Path, major: int, symbols: Mapping[str, Symbols], lacking: Mapping[str, Mapping[str, str | None]]
) -> None:
    """The other NVIDIA libraries of the wheel."""
    for name in foreign_libraries(symbols):
        if name.startswith((DRIVER, NVML, "libcudart.")):
            continue
        versions = (i.version for found in symbols.values() for i in found.imports if i.home == name and i.version)
        own = lacking.get(name, {})
        _library(folder, name, major, ["libraries.cpp"], own, [folder / DRIVER], version=next(versions, None))


def _library(
    folder: Path,
    name: str,
    major: int,
    sources: Iterable[str],
    unknown: Mapping[str, str | None],
    links: Iterable[Path],
    version: str | None = None,
) -> None:
    generated = folder / f"{name}.cpp"
    lines = ['#include "gpu.h"', 'extern "C" {']
    for function in sorted(unknown):
        result = "0" if DEVICE_WORK.match(function) else f'fake_unknown("{function}")'
        lines.append(f'__attribute__((visibility("default"))) int {function}() {{ return {result}; }}')
    generated.write_text("\n".join([*lines, "}", ""]))
    options = ["-shared", f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN"]
    if version:
        script = folder / f"{name}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    _compile(folder / name, [*(SOURCES / source for source in sources), generated], major, *options, *map(str, links))
    generated.unlink()


def _build_harness(folder: Path, torch: Path, release: str, major: int, c10: Symbols) -> None:
    old_strings = any("torchCheckFail" in name and "RKSs" in name for name in c10.exports)
    _compile(
        folder / "harness",
        [SOURCES / "harness.cpp"],
        major,
        f"-std=c++{20 if minor(release) >= 13 else 17}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(not old_strings)}",
        f"-DTORCH_MINOR={minor(release)}",
        f'-DTORCH_RELEASE="{release}"',
        f"-I{torch / 'include'}",
        f"-L{torch / 'lib'}",
        "-lc10_cuda",
        "-lc10",
        str(folder / f"libcudart.so.{major}"),
        str(folder / DRIVER),
        "-Wl,--disable-new-dtags",
        f"-Wl,-rpath,$ORIGIN:{torch / 'lib'}",
        "-Wl,--allow-shlib-undefined",
    )


def _compile(target: Path, sources: Iterable[Path], major: int, *options: str) -> None:
    command = [*compiler(), "-O1", "-std=c++17", "-fPIC", "-w", f"-DSTUB_CUDA={major}"]
    command += [f"-I{SOURCES}", f"-I{SOURCES / 'include'}", "-o", str(target), *map(str, sources), *options, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"cannot compile {target.name}: {done.stderr.strip()[-2000:]}")
