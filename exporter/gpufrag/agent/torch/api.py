"""Access to torch's functions, many of them private: a release may lack or change any of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...wire.error_counter import ErrorCounter

REFUSALS = (RuntimeError, TypeError, ValueError, KeyError, AttributeError, AssertionError)
"""What torch's functions raise: c10 errors, signatures of another release, failed checks."""


class TorchSurface:
    """`torch` is the module that the process has imported itself; it is never imported from here."""

    def __init__(self, torch: ModuleType, errors: ErrorCounter) -> None:
        self._torch, self._errors = torch, errors

    @property
    def version(self) -> str:
        return str(getattr(self._torch, "__version__", "unknown"))

    @property
    def release(self) -> tuple[int, int]:
        """(2, 11) for 2.11.0+cu128; (0, 0) if it cannot be parsed."""
        major, _, rest = self.version.partition(".")
        minor = rest.partition(".")[0]
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return the function of that name, such as `cuda.mem_get_info`; None if this torch has none."""
        found = self.value(name)
        return found if callable(found) else None

    def loaded(self, part: str) -> bool:
        """False if torch would import that part of itself only on first use."""
        own = vars(self._torch)
        return part in own or part not in own.get("_lazy_modules", ())

    def value(self, name: str) -> Any:
        """Return what torch has under that name, or None."""
        found: Any = self._torch
        path = found.__name__
        for part in name.split("."):
            path = f"{path}.{part}"
            # torch.optim deletes its submodules' names: they are loaded, but not attributes
            found = getattr(found, part, None) or sys.modules.get(path)
        return found

    def ask(self, name: str, *arguments: object) -> Any:
        """Call the function; None if it is missing or raises (which is counted)."""
        function = self.find(name)
        if function is None:
            return None
        try:
            return function(*arguments)
        except REFUSALS as error:
            self._errors.note(f"torch.{name}", error, "figures that need it are absent")
            return None
