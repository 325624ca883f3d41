"""Service level objectives: the latencies that were promised, and the share that met them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SloTargets:
    """Targets in milliseconds; None: none was set. Times at the target meet it."""

    ttft_ms: float | None = None
    itl_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms"):
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf):
                raise ValueError(f"slo_{name}={value} must be a number of milliseconds above 0")

    @property
    def ttft(self) -> float | None:
        """Seconds."""
        return None if self.ttft_ms is None else self.ttft_ms / 1000

    @property
    def itl(self) -> float | None:
        """Seconds."""
        return None if self.itl_ms is None else self.itl_ms / 1000


@dataclass
class Share:
    """How many of those that were judged met their target. One writer."""

    met: int = 0
    judged: int = 0

    def judge(self, met: bool, times: int = 1) -> None:
        self.met += times if met else 0
        self.judged += times
