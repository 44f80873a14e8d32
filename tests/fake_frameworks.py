"""What the agent touches of JAX and TensorFlow, as jax 0.10 and tensorflow 2.21 have it; figures as XLA gives them.

`calls` names everything that was called. Whatever would initialise a device is an assertion error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30
PREALLOCATED = {
    "num_allocs": 120, "bytes_in_use": 20 * GIB, "peak_bytes_in_use": 60 * GIB, "largest_alloc_size": 4 * GIB,
    "bytes_limit": 100 * GIB, "bytes_reserved": 0, "peak_bytes_reserved": 0, "bytes_reservable_limit": 0,
    "largest_free_block_bytes": 30 * GIB, "pool_bytes": 100 * GIB, "peak_pool_bytes": 100 * GIB,
}  # fmt: skip
GROWING = {**PREALLOCATED, "pool_bytes": 64 * GIB, "peak_pool_bytes": 64 * GIB}


@dataclass
class JaxDevice:
    """One of this host's. `stats` None: a device without an allocator's statistics, as the CPU is."""

    stats: dict[str, int] | None = field(default_factory=lambda: dict(PREALLOCATED))
    id: int = 8
    local_hardware_id: int | None = 0
    fault: Exception | None = None

    def memory_stats(self) -> dict[str, int] | None:
        if self.fault:
            raise self.fault
        return self.stats


@dataclass
class FakeJax:
    """A process that has imported JAX; `initialise` is what its first operation does."""

    module: ModuleType
    backends: dict[str, Any]
    listeners: list[Callable[..., None]] = field(default_factory=list)

    @property
    def modules(self) -> dict[str, ModuleType]:
        """What sys.modules has of it."""
        bridge = sys.modules["jax._src.xla_bridge"]
        return {"jax": self.module, "jax.monitoring": self.module.monitoring, "jax._src.xla_bridge": bridge}

    def initialise(self, platform: str = "cuda", *devices: JaxDevice) -> None:
        made = devices or (JaxDevice(),)
        self.backends["cpu"] = SimpleNamespace(local_devices=lambda: [JaxDevice(stats=None)])
        self.backends[platform] = SimpleNamespace(local_devices=lambda: list(made))

    def compile(self) -> None:
        for listener in self.listeners:
            listener("/jax/core/compile/backend_compile_duration", 0.1, fun_name="f")


def jax(monkeypatch: pytest.MonkeyPatch) -> FakeJax:
    module, bridge = ModuleType("jax"), ModuleType("jax._src.xla_bridge")
    made = FakeJax(module, {})
    bridge._backends = made.backends  # type: ignore[attr-defined]
    module.__version__ = "0.10.2"  # type: ignore[attr-defined]
    module.monitoring = monitoring = ModuleType("jax.monitoring")  # type: ignore[attr-defined]
    monitoring.register_event_duration_secs_listener = made.listeners.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    return made


@dataclass
class FakeTensorflow:
    """A process that has imported TensorFlow; `initialise` is what its first operation does."""

    module: ModuleType
    context: ModuleType
    calls: list[str] = field(default_factory=list)

    @property
    def modules(self) -> dict[str, ModuleType]:
        """What sys.modules has of it."""
        return {"tensorflow": self.module, self.context.__name__: self.context}

    def initialise(self, gpus: int = 1) -> None:
        context = self.context.Context()
        self.context._context = context  # type: ignore[attr-defined]
        context.names = ["CPU", *["GPU"] * gpus]
        context._initialize_logical_devices()
        context._initialized = True


class _Context:
    """TensorFlow's own: one for a process."""

    _initialized = False
    _logical_devices: list[SimpleNamespace] | None = None
    names: list[str]

    def _initialize_logical_devices(self) -> None:
        self._logical_devices = [SimpleNamespace(device_type=name) for name in self.names]


def tensorflow(monkeypatch: pytest.MonkeyPatch) -> FakeTensorflow:
    module, context = ModuleType("tensorflow"), ModuleType("tensorflow.python.eager.context")
    made = FakeTensorflow(module, context)

    def get_memory_info(device: str) -> dict[str, int]:
        made.calls.append(device)
        assert context._context._initialized, "this would initialise the devices"
        return {"current": 3 * GIB, "peak": 5 * GIB}

    context.Context, context._context = type("Context", (_Context,), {}), None  # type: ignore[attr-defined]
    context.Context._initialize_logical_devices = _Context._initialize_logical_devices  # type: ignore[attr-defined]
    module.__version__ = "2.21.0"  # type: ignore[attr-defined]
    module.config = SimpleNamespace(  # type: ignore[attr-defined]
        experimental=SimpleNamespace(get_memory_info=get_memory_info)
    )
    monkeypatch.setitem(sys.modules, context.__name__, context)
    return made
