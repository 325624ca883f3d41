"""A histogram that its one writer updates without locks, several equal observations at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts observations by upper bound, as Prometheus does: a value equal to a bound lies within it.

    One thread observes; any thread reads. A reader's buckets and count always agree with each other, and its
    sum may lack the observation that is being made at that moment.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), f"bounds must increase: {bounds}"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)      # the last: beyond every bound
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, observations up to it), the last bound being infinite."""
        counts, running, rows = list(self.counts), 0, []      # copied at once, so that all buckets are of one moment
        for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows


def decades(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5, 10, ... times powers of ten, from `low` to `high`."""
    bounds, exponent = [], -6
    while 10.0**exponent <= high:
        bounds += [float(f"{digit}e{exponent}") for digit in (1, 2, 5)]
        exponent += 1
    return tuple(b for b in bounds if low <= b <= high)


def powers_of_two(high: int) -> tuple[float, ...]:
    """1, 2, 4, ... up to the first that is at least `high`."""
    return tuple(float(2**i) for i in range((max(high, 1) - 1).bit_length() + 1))


def with_bound(bounds: tuple[float, ...], extra: float | None) -> tuple[float, ...]:
    """The bounds and one more, so that the share below it is known exactly."""
    return bounds if extra is None else tuple(sorted({*bounds, extra}))
