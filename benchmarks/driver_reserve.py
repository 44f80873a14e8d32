"""What the driver keeps back: cudaMemGetInfo's free bytes against the largest cudaMalloc that succeeds.

Run on a GPU: `PYTHONPATH=exporter python3 benchmarks/driver_reserve.py > driver_reserve.json`.
For several ways and levels of filling the device: free bytes, and by bisection the largest single cudaMalloc.
"""

import ctypes
import json
import sys

import torch

MIB = 1 << 20
GIB = 1 << 30
GRID = 64 << 10


def cudart() -> ctypes.CDLL:
    """The runtime that torch itself has loaded."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart.so" in line)
    return ctypes.CDLL(path)


class Runtime:
    """cudaMalloc and cudaFree without an allocator in between."""

    def __init__(self) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.runtime = cudart()

    def malloc(self, size: int) -> int | None:
        pointer = ctypes.c_void_p()
        if self.runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
            self.runtime.cudaGetLastError()
            return None
        return pointer.value

    def free(self, pointer: int) -> None:
        assert self.runtime.cudaFree(ctypes.c_void_p(pointer)) == 0

    def room(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value

    def succeeds(self, size: int) -> bool:
        pointer = self.malloc(size)
        if pointer is not None:
            self.free(pointer)
        return pointer is not None

    def largest(self, low: int, high: int) -> int:
        """The largest multiple of GRID between low (fits) and high (does not) that one cudaMalloc gets."""
        while high - low > GRID:
            middle = (low + high) // 2 // GRID * GRID
            low, high = (middle, high) if self.succeeds(middle) else (low, middle)
        return low


def fill(driver: Runtime, target: int, piece: int) -> list[int]:
    """Allocate pieces until only `target` bytes are free."""
    held = []
    while driver.room() - piece >= target:
        for _ in range(max(1, min(1000, (driver.room() - target) // piece))):
            if (pointer := driver.malloc(piece)) is None:
                return held
            held.append(pointer)
    return held


def main() -> None:
    driver = Runtime()
    rows = []
    for left in (139, 120, 100, 60, 30, 10, 3, 1):
        for piece in (2 * MIB, 20 * MIB, 1 * GIB):
            if piece == 2 * MIB and left < 100 and left not in (30, 3):
                continue
            held = fill(driver, left * GIB, piece)
            free = driver.room()
            first = driver.largest(0, free + 8 * MIB)
            again = driver.largest(0, free + 8 * MIB)
            for pointer in held:
                driver.free(pointer)
            row = {"left_gib": left, "piece_mib": piece // MIB, "free": free, "largest": first, "again": again}
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    json.dump(rows, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
