"""Steps of the training loop, told from the steps of its optimizers."""

from __future__ import annotations

import weakref


class Steps:
    """Counts rounds: a step begins when an optimizer that has already stepped in this round steps again.

    One optimizer: each of its steps is one. Two that take turns (a GAN), or one for every parameter, make one
    step together. Where one of two steps more often than the other, its steps are counted. One that is made anew
    for each step is gone from its round when it is gone from the program, so that it neither holds the count up
    nor is remembered for ever.
    """

    def __init__(self) -> None:
        self.count = 0
        self._stepped: dict[int, object] = {}
        """By identity, with the mark that takes it out when it goes."""
        self._last_round: frozenset[int] = frozenset()

    def note(self, optimizer: object) -> bool:
        """An optimizer has stepped; True where that begins a new step of the loop."""
        key, mark = id(optimizer), self._stepped.get(id(optimizer))
        if mark is None:
            mark = self._mark(optimizer, key)
            if self._stepped:
                self._stepped[key] = mark
                return False
        self._last_round = frozenset(self._stepped)
        self._stepped.clear()
        self._stepped[key] = mark
        self.count += 1
        return True

    def _mark(self, optimizer: object, key: int) -> object:
        stepped = self._stepped

        def forget(mark: object) -> None:
            if stepped.get(key) is mark:
                del stepped[key]

        try:
            return weakref.ref(optimizer, forget)
        except TypeError:  # it cannot be watched, and so stays
            return key

    @property
    def whole(self) -> bool:
        """Whether all optimizers of the last round have stepped in this one: nothing of this step is left to do."""
        return bool(self._last_round) and self._last_round <= self._stepped.keys()
