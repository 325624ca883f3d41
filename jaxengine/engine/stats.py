"""What each step did, where its time went, and who is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from jaxengine.engine.output import RequestState
from jaxengine.types import Request


@dataclass
class StepStats:
    """What one step did, and the host's seconds in each part of it."""

    step_id: int
    kind: str                # decode, mixed
    bucket: int              # sequences of a decode step, tokens of a mixed one
    num_tokens: int
    num_seqs: int
    num_sampled: int = 0
    schedule_s: float = 0.0
    build_s: float = 0.0
    forward_s: float = 0.0   # dispatch of the forward
    wait_s: float = 0.0      # waiting for the previous step's ids
    output_s: float = 0.0    # detokenising and finishing the previous step's rows
    sampler_s: float = 0.0   # sampler inputs and dispatch
    started: float = 0.0     # when its planning began, on time.perf_counter's clock
    step_s: float = 0.0      # from there, or from the read before it if that came later, until its ids were read

    @property
    def host_s(self) -> float:
        """Python's share: everything except waiting for the device."""
        return self.schedule_s + self.build_s + self.forward_s + self.output_s + self.sampler_s

    @property
    def padding(self) -> int:
        """Tokens that the bucket computes for nobody."""
        return self.bucket - self.num_tokens


@dataclass(slots=True)
class TokensRead:
    """The tokens that reading one step's ids brought, all at the monotonic time `now` (seconds).

    waited: the same moment on time.perf_counter's clock.

    followers: how many of them follow a token of their own sequence, by that token's time. Sequences that decode
    together share it, so whoever measures the gaps has one or two entries a step to look at, not one a token.
    """

    now: float
    waited: float = 0.0
    num_tokens: int = 0
    followers: dict[float, int] = field(default_factory=dict)
    started: list[Request] = field(default_factory=list)       # requests whose first token is among them


class EngineObserver(Protocol):
    """Is told on the engine's own thread: must be quick, and must not raise."""

    def step_read(self, stats: StepStats, tokens: TokensRead) -> None:
        """A step's ids were read. Of `stats`, what belongs to the step after it is not set yet."""

    def request_ended(self, state: RequestState) -> None:
        """A request has ended, for whatever reason; its sequences know theirs."""
