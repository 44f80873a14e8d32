"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from .sources import Source

T = TypeVar("T")

GAUGE = "gauge"
COUNTER = "counter"
INFO = "info"
HISTOGRAM = "gaugehistogram"
_UNITS = ("bytes", "seconds")


class Sizes(NamedTuple):
    """Reading of a histogram: how many are in each bucket (not cumulative; the last takes the rest), and their sum."""

    counts: Sequence[int]
    total: int


Reading = float | None | Mapping[str, float | None] | Mapping[str, object] | Sizes


@dataclass(frozen=True)
class Metric(Generic[T]):
    """One metric: what it is called, what it means, and how it is read at each place of its source.

    `read` gives a number, or None where it is not known: then there is no series. With `adds`, it gives a number
    by value of that label; of an INFO, the values of the labels `adds`; of a HISTOGRAM, its Sizes.
    """

    name: str
    kind: str
    source: Source[T]
    read: Callable[[T], Reading]
    help: str
    adds: tuple[str, ...] = ()
    outlives: bool = False
    """Whether it is shown of a process that has ended, for as long as its last words are kept."""
    detail: bool = False
    """Whether it is for those who dig, and no alert or rule reads it: a large fleet may do without."""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.source.labels + self.adds

    @property
    def unit(self) -> str:
        """The base unit that the name ends in, or nothing."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")

    @property
    def shown_of_the_dead(self) -> bool:
        return self.outlives or self.kind == COUNTER
