"""Detects the first use of a framework's device in this process, at no cost until then and without a visible change.

An import finder that finds nothing sees each import. Once a framework's own module is loaded, the framework
reports its first use: torch runs queued calls when it initialises CUDA, JAX calls its listeners when it compiles,
TensorFlow's context creates its devices in one method. So a launcher or data loader worker keeps these entries and
nothing else. They survive a fork: a child that initialises CUDA gets its own agent.

Every Python process of a job loads this module, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Modules = dict[str, ModuleType]
    Ready = Callable[[ModuleType], None]
    """Called with the framework's module, in the thread that first uses a device."""

NOTED = "GPUFRAG_CPU_TORCH_NOTED"


def when_in_use(ready: Ready, modules: Modules = sys.modules, finders: list[Any] = sys.meta_path) -> None:
    """Call `ready` when a known framework first uses a device, or now if one already does. Never raises."""
    watch = ImportWatch(ready, modules)
    watch.look()
    if watch.pending:
        finders.insert(0, watch)


class ImportWatch:
    """A finder that finds nothing. It stays: to remove it during an import would make Python skip the next finder."""

    def __init__(self, ready: Ready, modules: Modules) -> None:
        self._ready, self._modules = ready, modules
        self.pending = dict(WATCHED)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self.pending:
            self.look()

    def look(self) -> None:
        """Only reads sys.modules, so it neither runs other import hooks nor loads a lazily imported module."""
        for name in list(self.pending):
            module = self._modules.get(name)
            if module is None or _is_loading(module):
                continue
            watch = self.pending.pop(name, None)  # another thread may be importing too
            if watch is not None:
                _guarded(watch, self._modules, self._ready)


def _is_loading(module: ModuleType) -> bool:
    """Whether the module is half loaded, or would load at the first access to it (importlib.util.LazyLoader)."""
    if type(module).__getattribute__ is not type(sys).__getattribute__:
        return True
    return bool(getattr(module.__dict__.get("__spec__"), "_initializing", False))


def _watch_torch(modules: Modules, ready: Ready) -> None:
    cuda: Any = modules["torch.cuda"]
    if cuda.is_initialized():
        ready(modules["torch"])
        return
    # an exception there would be reported as a failure of CUDA's initialisation
    cuda._lazy_call(lambda: _guarded(ready, modules["torch"]))
    version: Any = modules.get("torch.version")
    if version is None or getattr(version, "cuda", None) or getattr(version, "hip", None):
        return
    if os.environ.get("GPUFRAG_AGENT_PATH") and not os.environ.get(NOTED):  # once for the processes of `gpufrag run`
        os.environ[NOTED] = "1"
        name = getattr(version, "__version__", "torch")
        _print(f"gpufrag: torch {name} is built without GPU support, so there is nothing to record\n")


def _watch_jax(modules: Modules, ready: Ready) -> None:
    """JAX reports each compilation, and initialises a backend before the first one."""

    def listen(*event: object, **details: object) -> None:
        if waiting:
            _guarded(look)

    def look() -> None:
        backends = getattr(modules.get("jax._src.xla_bridge"), "_backends", None) or ()
        if any(platform in backends for platform in ("cuda", "rocm", "gpu")):
            waiting.clear()
            ready(modules["jax"])

    waiting = [True]
    register = getattr(modules["jax.monitoring"], "register_event_duration_secs_listener", None)
    look()
    if waiting and register is not None:  # None: an unknown version of JAX
        register(listen)


def _watch_tensorflow(modules: Modules, ready: Ready) -> None:
    """TensorFlow has no listeners, so its private method that creates the devices is wrapped."""
    context = modules[CONTEXT]
    kind = getattr(context, "Context", None)
    initialise = getattr(kind, "_initialize_logical_devices", None)
    if kind is None or initialise is None:  # an unknown version of TensorFlow
        return

    def look(context: Any) -> None:
        devices = getattr(context, "_logical_devices", None) or ()
        if waiting and any(device.device_type == "GPU" for device in devices):
            waiting.clear()
            ready(modules["tensorflow"])

    def initialise_and_look(context: Any, *arguments: Any) -> Any:
        answer = initialise(context, *arguments)
        _guarded(look, context)
        return answer

    waiting = [True]
    look(getattr(context, "_context", None))
    if waiting:
        kind._initialize_logical_devices = initialise_and_look


CONTEXT = "tensorflow.python.eager.context"
WATCHED: dict[str, Callable[[Modules, Ready], None]] = {
    "torch.cuda": _watch_torch,
    "jax.monitoring": _watch_jax,
    CONTEXT: _watch_tensorflow,
}
"""By framework: the module that shows it is loaded, and how to detect its first device."""


def _guarded(function: Callable[..., None], *arguments: object) -> None:
    """Our caller is the program's own import or CUDA's initialisation, which must not fail because of us."""
    try:
        function(*arguments)
    except BaseException as error:
        from ..wire.interrupts import let_through  # not needed in most processes

        let_through(error)
        _print(f"gpufrag: no agent in this process: {type(error).__name__}: {error}; training continues\n")


def _print(line: str) -> None:
    try:
        sys.stderr.write(line)
    except BaseException as error:  # it may be None, closed, or an object of the program
        from ..wire.interrupts import let_through  # not needed in most processes

        let_through(error)
