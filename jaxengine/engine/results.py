"""A step's results on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from jaxengine.engine.sampler import SampleResult, ScoreResult
from jaxengine.types import Logprob


@dataclass(frozen=True)
class HostLogprobs:
    """The log-probabilities of a ScoreResult, or of the full sampler's SampleResult, as numpy arrays."""

    logprob: np.ndarray
    rank: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @classmethod
    def read(cls, result: ScoreResult | SampleResult, places: np.ndarray | slice | None = None) -> HostLogprobs:
        """places: the rows to take, in order; None: all."""
        return cls(*(_taken(getattr(result, f.name), places) for f in fields(cls)))

    def entry(self, row: int, token_id: int, count: int, text: Callable[[int], str | None]) -> dict[int, Logprob]:
        """One position: the token's own log-probability first, then the top `count`."""
        entries = {token_id: Logprob(float(self.logprob[row]), int(self.rank[row]), text(token_id))}
        top = zip(self.top_ids[row, :count].tolist(), self.top_logprobs[row, :count].tolist(), strict=True)
        for rank, (top_id, value) in enumerate(top, 1):
            if top_id not in entries:
                entries[top_id] = Logprob(value, rank, text(top_id))
        return entries


@dataclass(frozen=True)
class HostResult:
    """sampler.SampleResult on the host, one entry a row."""

    token_ids: list[int]
    finite: list[bool]
    allowed: list[bool] | None
    logprobs: HostLogprobs | None

    @classmethod
    def read(cls, result: SampleResult, wants_logprobs: bool, places: np.ndarray | None = None) -> HostResult:
        """Waits for the device. places: the rows to take, in order; None: all."""
        logprobs = HostLogprobs.read(result, places) if wants_logprobs else None
        allowed = None if result.allowed is None else _taken(result.allowed, places).tolist()
        return cls(_taken(result.ids, places).tolist(), _taken(result.finite, places).tolist(), allowed, logprobs)


def _taken(values: Any, places: np.ndarray | slice | None) -> np.ndarray:
    return np.asarray(values) if places is None else np.asarray(values)[places]
