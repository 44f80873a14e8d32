"""Learns that this process has begun to use a framework's device, at no cost until it does.

No thread and no polling: an import hook tells that torch is there, and torch itself tells, by the queue in which
it keeps what is to happen at the end of CUDA's initialisation, that a device is in use. JAX and TensorFlow have no
such queue: JAX's listeners hear of the first thing that it compiles, TensorFlow's context makes its devices in one
place. A process that never gets so far (a launcher, a data loader's worker) has nothing of the agent but these
entries. They outlive a fork, so that a child that initialises CUDA itself has an agent of its own.

This module is loaded into every Python process of a job, so it imports next to nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, which takes longer to import than all that is here

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Ready = Callable[[ModuleType], None]
    """Called with the framework's module, in the thread that has begun to use a device."""


def when_in_use(ready: Ready, modules: dict[str, ModuleType] = sys.modules, finders: list[Any] = sys.meta_path) -> None:
    """Have `ready` called once a known framework uses a device: now, if it does already. Raises nothing, ever."""
    for name, wait in FRAMEWORKS.items():
        if name in modules:
            _quietly(wait, modules[name], ready)
        else:
            finders.insert(0, _Watch(name, wait, ready, finders))


def _when_cuda_is_in_use(torch: ModuleType, ready: Ready) -> None:
    if torch.cuda.is_initialized():
        ready(torch)
    else:
        torch.cuda._lazy_call(lambda: _quietly(ready, torch))  # an error there would be CUDA's failure to initialise


def _when_jax_uses_a_gpu(jax: Any, ready: Ready) -> None:
    """JAX tells its listeners of each compilation, and whatever it compiles, it has initialised a backend for."""

    def listen(*event: object, **details: object) -> None:
        if waiting:
            _quietly(look)

    def look() -> None:
        backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or ()
        if any(platform in backends for platform in ("cuda", "rocm", "gpu")):
            waiting.clear()
            ready(jax)

    waiting = [True]
    register = getattr(getattr(jax, "monitoring", None), "register_event_duration_secs_listener", None)
    look()
    if waiting and register is not None:  # else another JAX than those that are known
        register(listen)


def _when_tensorflow_uses_a_gpu(tensorflow: ModuleType, ready: Ready) -> None:
    """TensorFlow tells nobody: a little is added to the one private method that it runs when it has its devices."""
    context = sys.modules.get("tensorflow.python.eager.context")
    kind = getattr(context, "Context", None)
    initialise = getattr(kind, "_initialize_logical_devices", None)
    if kind is None or initialise is None:  # another TensorFlow than those that are known: it stays as it is
        return

    def look(context: Any) -> None:
        devices = getattr(context, "_logical_devices", None) or ()
        if waiting and any(device.device_type == "GPU" for device in devices):
            waiting.clear()
            ready(tensorflow)

    def initialise_and_look(context: Any, *arguments: Any) -> Any:
        answer = initialise(context, *arguments)
        _quietly(look, context)
        return answer

    waiting = [True]
    look(getattr(context, "_context", None))
    if waiting:
        kind._initialize_logical_devices = initialise_and_look


FRAMEWORKS: dict[str, Callable[[Any, Ready], None]] = {
    "torch": _when_cuda_is_in_use,
    "jax": _when_jax_uses_a_gpu,
    "tensorflow": _when_tensorflow_uses_a_gpu,
}
"""The module to wait for, and how it tells that its device is in use; its adapter is in `sources.ADAPTERS`."""


def _quietly(function: Callable[..., None], *arguments: object) -> None:
    """Below us is the program's own import, or CUDA's initialisation: neither may fail for our sake."""
    try:
        function(*arguments)
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException as error:
        what = f"{type(error).__name__}: {error}"
        _tell(f"gpufrag: no agent in this process: {what}; training goes on\n")


def _tell(line: str) -> None:
    try:  # noqa: SIM105  # contextlib would be one more import in every process
        sys.stderr.write(line)
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        pass


class _Watch:
    """A finder that finds nothing itself: it lets the others find `name`, and acts when that is loaded."""

    def __init__(self, name: str, wait: Callable[[ModuleType, Ready], None], ready: Ready, finders: list[Any]) -> None:
        self._name, self._wait, self._ready, self._finders = name, wait, ready, finders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        # by name, so that the watch of a second copy of this package is passed over too: they would ask each other
        others = [f for f in self._finders if type(f).__name__ != _Watch.__name__ and hasattr(f, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _quietly(self._act_after, spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        """The loader stays the one it is, of its own type; one method of this one instance does a little more."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in self._finders:
                self._finders.remove(self)
                _quietly(self._wait, module, self._ready)

        loader.exec_module = exec_module
