"""Host-side types, in the order a request passes through them. No jax here.

Request -> Sequence -> StepPlan -> (StepBatch, on the device) -> RequestOutput.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from jaxengine.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20
MAX_N = 128


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request. Names, ranges and defaults are vLLM's; `validate()` says what is wrong.

    n: sequences per prompt. temperature: 0 is greedy. top_k: 0 or -1 is off. top_p, min_p: probabilities.
    max_tokens: None means up to the context's end. seed: 64 bits; None draws one. logprobs: number of top
    log-probabilities returned besides the sampled token's own (None: none at all). Log-probabilities are
    those of the model's raw logits, before penalties, temperature and truncation.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int = 0
    max_tokens: int | None = 16
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        self.validate()

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def validate(self) -> None:
        """Raises ValueError naming the field, its value and the range. Vocabulary bounds are the engine's check."""
        for name in ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        for name, kind in _CONTAINERS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name}={value!r} must be a {' or a '.join(k.__name__ for k in kind)}")
        _whole("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, 2.0)
        _whole("top_k", self.top_k, -1, None)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, None)
        _whole("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is larger than max_tokens={self.max_tokens}")
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_LOGPROBS)
        for text in self.stop_strings:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop={self.stop!r}: every stop string must be a non-empty string")
        if self.stop_strings and not self.detokenize:
            raise ValueError("stop strings need detokenize=True; use stop_token_ids instead")
        for name in ("stop_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                _whole(name, token_id, 0, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids=[] allows nothing; leave it out or name at least one token")
        for token_id, bias in (self.logit_bias or {}).items():
            _whole("logit_bias key", token_id, 0, None)
            _number(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
        if not isinstance(self.structured_outputs, (StructuredOutputs, type(None))):
            raise ValueError(f"structured_outputs={self.structured_outputs!r} must be a StructuredOutputs")
        for word in self.bad_words or ():
            if not isinstance(word, str) or not word:
                raise ValueError(f"bad_words={self.bad_words!r}: every entry must be a non-empty string")

    def replace(self, **changes: Any) -> SamplingParams:
        return replace(self, **changes)


_CONTAINERS: dict[str, tuple[type, ...]] = {
    "stop": (str, list, tuple), "stop_token_ids": (list, tuple, set), "allowed_token_ids": (list, tuple, set),
    "bad_words": (list, tuple), "logit_bias": (dict,),
}


def _whole(name: str, value: Any, low: int, high: int | None) -> None:
    bound = f"at least {low}" if high is None else f"in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ValueError(f"{name}={value!r} must be a whole number {bound}")


def _number(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not fits or (open_low and value == low):
        raise ValueError(f"{name}={value!r} must be a number in {'(' if open_low else '['}{low}, {high}]")


class FinishReason(StrEnum):
    STOP = "stop"        # end of sequence, a stop token or a stop string
    LENGTH = "length"    # max_tokens or the context's end
    ABORT = "abort"
    ERROR = "error"      # this request alone failed; see RequestOutput.error


@dataclass(frozen=True)
class Logprob:
    """One token's log-probability (natural log), its rank among the vocabulary (1 is best) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass
class Request:
    """What a caller asked for, validated, with token ids."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    priority: int = 0               # lower runs first, as in vLLM
    cache_salt: str | None = None   # requests with different salts never share prefix blocks
    arrival_time: float = field(default_factory=time.monotonic)


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


UNASSIGNED = -1


@dataclass(eq=False)
class Sequence:
    """One sampled continuation of a request; a request with n > 1 has n of them.

    The host learns a sampled id one step late. `num_pending` counts ids that are sampled on the device
    but not read yet, so `num_tokens` = known ids + pending ones, and the next step can be planned early.
    """

    seq_id: int
    request: Request
    index: int = 0                                        # which of the request's n sequences
    token_ids: list[int] = field(default_factory=list)    # prompt, then known output ids
    num_pending: int = 0
    num_computed_tokens: int = 0                          # tokens whose KV is in the pool once planned steps ran
    num_cached_tokens: int = 0                            # prompt tokens taken from the prefix cache at first admission
    max_num_tokens: int = 0                               # prompt and output end here; set by the scheduler's `add`
    shard: int = UNASSIGNED                               # data-parallel shard of its blocks, from first admission on
    block_table: list[int] = field(default_factory=list)      # ids in the shard's own pool
    block_hashes: list[bytes] = field(default_factory=list)   # chained digests of full blocks of known ids
    num_registered_blocks: int = 0                        # leading blocks that the prefix cache has seen
    slot: int = -1                                        # row of the per-sequence device state while running
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    last_token_time: float | None = None

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = list(self.request.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens:]

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED


class PlannedRow(NamedTuple):   # a tuple, because every step makes one per sequence
    """One sequence's share of a step: positions [start, start + num_tokens) are computed.

    sample: whether the row's last position is sampled (the row reaches the sequence's end).
    """

    seq_id: int
    slot: int
    start: int
    num_tokens: int
    sample: bool


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One data-parallel shard's share of a step; block ids are those of its own pool.

    rows: decode rows (one token each) first, then prefill chunks. `num_decodes` counts the former.
    copies: (source, destination) blocks to copy before the step: copy on write.
    forks: (parent seq_id, child seq_id, child slot): children sampled from the parent's row (n > 1).
    """

    rows: tuple[PlannedRow, ...]
    num_decodes: int
    copies: tuple[tuple[int, int], ...] = ()
    forks: tuple[tuple[int, int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes: small, plain integers, no arrays. Without data parallelism there is one shard."""

    step_id: int
    shards: tuple[ShardPlan, ...]
    preempted: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[PlannedRow, ...]:
        """Of all shards, one shard after another."""
        if len(self.shards) == 1:
            return self.shards[0].rows
        return tuple(row for shard in self.shards for row in shard.rows)

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_decodes(self) -> int:
        return sum(shard.num_decodes for shard in self.shards)

    @property
    def is_decode(self) -> bool:
        """Every row computes exactly one token, so the decode step serves it."""
        return all(shard.num_decodes == len(shard.rows) for shard in self.shards)


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's n continuations. `text` and `token_ids` are cumulative."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestMetrics:
    """Monotonic times in seconds of one request's life; None where it has not come that far."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request's state after a step, or its result when `finished`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None
