"""Counts steps of the training loop by the steps of its optimizers."""

from __future__ import annotations

import weakref


class StepCounter:
    """A step begins when an optimizer that has already stepped in this round steps again.

    With one optimizer, each of its steps counts. Two that alternate (a GAN), or one per parameter, make one step
    together; if one of them steps more often, its steps count. An optimizer that the program drops is dropped here
    too, so one that is created anew for each step neither stops the count nor stays in memory.
    """

    def __init__(self) -> None:
        self.count = 0
        self._stepped: dict[int, object] = {}
        """id(optimizer) -> its weak reference."""
        self._last_round: frozenset[int] = frozenset()

    def note(self, optimizer: object) -> bool:
        """An optimizer has stepped; return whether that begins a new step of the loop."""
        key, reference = id(optimizer), self._stepped.get(id(optimizer))
        if reference is None:
            reference = self._reference(optimizer, key)
            if self._stepped:
                self._stepped[key] = reference
                return False
        self._last_round = frozenset(self._stepped)
        self._stepped.clear()
        self._stepped[key] = reference
        self.count += 1
        return True

    def _reference(self, optimizer: object, key: int) -> object:
        stepped = self._stepped

        def forget(reference: object) -> None:
            if stepped.get(key) is reference:
                del stepped[key]

        try:
            return weakref.ref(optimizer, forget)
        except TypeError:  # no weak references to it, so it stays
            return key

    @property
    def whole(self) -> bool:
        """Whether all optimizers of the last round have stepped in this one: the step is complete."""
        return bool(self._last_round) and self._last_round <= self._stepped.keys()
