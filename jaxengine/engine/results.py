"""A step's results on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

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
    def read(cls, result: ScoreResult | SampleResult) -> HostLogprobs:
        return cls(*(np.asarray(getattr(result, f.name)) for f in fields(cls)))

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
    logprobs: HostLogprobs | None

    @classmethod
    def read(cls, result: SampleResult, wants_logprobs: bool) -> HostResult:
        """Waits for the device."""
        logprobs = HostLogprobs.read(result) if wants_logprobs else None
        return cls(np.asarray(result.ids).tolist(), np.asarray(result.finite).tolist(), logprobs)
