"""Steps of the training loop, told from the steps of its optimizers."""

from __future__ import annotations


class Steps:
    """Counts rounds: a step begins when an optimizer that has already stepped in this round steps again.

    One optimizer: each of its steps is one. Two that take turns (a GAN), or one for every parameter, make one
    step together. Where one of two steps more often than the other, its steps are counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self._stepped: set[int] = set()
        self._last_round: set[int] = set()

    def note(self, optimizer: object) -> bool:
        """An optimizer has stepped; True where that begins a new step of the loop."""
        key = id(optimizer)
        if self._stepped and key not in self._stepped:
            self._stepped.add(key)
            return False
        self._last_round, self._stepped = self._stepped, {key}
        self.count += 1
        return True

    @property
    def whole(self) -> bool:
        """Whether all optimizers of the last round have stepped in this one: nothing of this step is left to do."""
        return bool(self._last_round) and self._last_round <= self._stepped
