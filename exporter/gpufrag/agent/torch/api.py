"""Torch's names, many of them private, each of which a version may lack or change: the one door to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...wire.error_counter import ErrorCounter

REFUSALS = (RuntimeError, TypeError, ValueError, KeyError, AttributeError, AssertionError)
"""What torch's functions raise: c10 errors, wrong signatures of another version, failed checks."""


class TorchSurface:
    """`torch` is the module that the process has imported itself; it is never imported from here."""

    def __init__(self, torch: ModuleType, trouble: ErrorCounter) -> None:
        self._torch, self._trouble = torch, trouble

    @property
    def version(self) -> str:
        return str(getattr(self._torch, "__version__", "unknown"))

    @property
    def release(self) -> tuple[int, int]:
        """(2, 11) of 2.11.0+cu128; (0, 0) where it cannot be read."""
        major, _, rest = self.version.partition(".")
        minor = rest.partition(".")[0]
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)

    def find(self, name: str) -> Callable[..., Any] | None:
        """`cuda.mem_get_info` -> that function; None where this torch has no such name."""
        found = self.value(name)
        return found if callable(found) else None

    def loaded(self, part: str) -> bool:
        """False where torch would import that part of it only when asked for it."""
        own = vars(self._torch)
        return part in own or part not in own.get("_lazy_modules", ())

    def value(self, name: str) -> Any:
        """What torch has under that name; None where it has nothing."""
        found: Any = self._torch
        path = found.__name__
        for part in name.split("."):
            path = f"{path}.{part}"
            # torch.optim takes its submodules' names out again: they are loaded, but no attributes
            found = getattr(found, part, None) or sys.modules.get(path)
        return found

    def ask(self, name: str, *arguments: object) -> Any:
        """What the function answers; None where it is missing, or refuses (which is counted)."""
        function = self.find(name)
        if function is None:
            return None
        try:
            return function(*arguments)
        except REFUSALS as error:
            self._trouble.note(f"torch.{name}", error, "figures that rest on it are absent")
            return None
