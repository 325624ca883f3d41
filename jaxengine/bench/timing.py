"""Repeats and their medians. Variants that are compared take turns, so a slow minute hits all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def alternate(variants: Mapping[K, Callable[[], V]], repeats: int, warmup: int = 1) -> dict[K, list[V]]:
    """Calls every variant in turn, `warmup` rounds unrecorded and then `repeats` rounds.

    Every other round runs backwards: what one variant leaves behind (heat, caches) must not always meet the same
    next one.
    """
    results: dict[K, list[V]] = {name: [] for name in variants}
    order = list(variants)
    for round_ in range(warmup + repeats):
        for name in order if round_ % 2 == 0 else reversed(order):
            value = variants[name]()
            if round_ >= warmup:
                results[name].append(value)
    return results


def median(values: list[float]) -> float:
    return statistics.median(values)


def spread(values: list[float]) -> float:
    """(highest - lowest) over the median: how far a figure can be trusted."""
    return (max(values) - min(values)) / statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
