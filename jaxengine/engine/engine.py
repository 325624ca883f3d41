"""The step loop: plan, launch the forward, read the previous step, launch the sampler.

    Request -> Sequence -> StepPlan -> StepBatch -> compiled step -> sampled ids -> text -> RequestOutput

Results are read one step late. While the device runs a forward, the host reads the ids sampled before
it, detokenises them, ends what has ended and prepares the sampler's rows; so a step's masks and
penalties always see every earlier token, and the device never waits for Python.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from jaxengine.config import EngineConfig
from jaxengine.engine.batch import BatchBuilder, SampleRow
from jaxengine.engine.output import OutputKind, RequestState, SequenceOutput
from jaxengine.engine.runner import Runner
from jaxengine.engine.row_table import RowTable
from jaxengine.engine.sampler import SampleResult, TokenLogprobs
from jaxengine.engine.sampling_batch import RowTemplate, has_penalties, needs_full
from jaxengine.engine.step import SCORE_ROWS
from jaxengine.scheduler import BlockManager, Scheduler
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import (
    FinishReason,
    Logprob,
    Request,
    RequestOutput,
    SamplingParams,
    Sequence,
    StepPlan,
)


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

    @property
    def host_s(self) -> float:
        """Python's share: everything except waiting for the device."""
        return self.schedule_s + self.build_s + self.forward_s + self.output_s + self.sampler_s

    @property
    def padding(self) -> int:
        """Tokens that the bucket computes for nobody."""
        return self.bucket - self.num_tokens


@dataclass
class _Flight:
    """A step on the device whose results have not been read."""

    plan: StepPlan
    samples: list[SampleRow]
    stats: StepStats
    rows: Any = None
    result: Any = None
    full: bool = False
    scores: list[tuple[RequestState, list[int], list[Any]]] = field(default_factory=list)


class Engine:
    """Batches requests onto one model. Not thread-safe: one thread calls it (see AsyncEngine).

    `plans`, `stats`, `scheduler` and `runner` are open to look at.
    """

    def __init__(
        self, runner: Runner, config: EngineConfig, max_model_len: int,
        tokenizer: Tokenizer | None = None, eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.runner, self.config, self.tokenizer = runner, config, tokenizer
        self.max_model_len, self.eos_token_ids = max_model_len, eos_token_ids
        cache = config.cache
        self.blocks = BlockManager(runner.memory.num_blocks, cache.block_size, cache.enable_prefix_caching)
        self.scheduler = Scheduler(config.scheduler, self.blocks, max_model_len)
        self.stats: deque[StepStats] = deque(maxlen=4096)
        self.requests: dict[str, RequestState] = {}
        self.last_plan: StepPlan | None = None
        self._outputs: dict[int, SequenceOutput] = {}
        self._states: dict[int, RequestState] = {}
        self._builder = BatchBuilder(
            config.scheduler.max_num_seqs, runner.buckets.blocks_per_seq, cache.block_size, self._sequence
        )
        self._rows = RowTable(config.scheduler.max_num_seqs, runner.cfg.vocab_size)
        self._templates: dict[int, RowTemplate] = {}
        self._flight: _Flight | None = None
        self._seeds = random.Random(config.seed)
        self._request_ids = itertools.count()
        self._tenants: dict[int, tuple[int, int]] = {}     # slot -> the sequence whose sampling row it holds

    @property
    def ledger(self):
        return self.runner.ledger

    @property
    def memory_plan(self):
        return self.runner.memory

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests) or self._flight is not None

    def add_request(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None, *, request_id: str | None = None,
        prompt: str | None = None, priority: int = 0, cache_salt: str | None = None, output_kind: OutputKind = "cumulative",
    ) -> str:
        """Queues a request and returns its id. Raises ValueError for what can never be served."""
        params = params or SamplingParams()
        vocab_size = self.runner.cfg.vocab_size
        if not prompt_token_ids:
            raise ValueError("prompt_token_ids=[]: a prompt needs at least one token")
        bad = next((t for t in prompt_token_ids if isinstance(t, bool) or not isinstance(t, (int, np.integer)) or not 0 <= t < vocab_size), None)
        if bad is not None:
            raise ValueError(f"prompt_token_ids: {bad!r} is not a token id in [0, {vocab_size})")
        if params.stop_strings and self.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs a tokenizer, and this engine has none; use stop_token_ids")
        if params.seed is None:
            params = params.replace(seed=self._seeds.getrandbits(63))
        request_id = request_id if request_id is not None else f"req-{next(self._request_ids)}"
        if request_id in self.requests:
            raise ValueError(f"request_id={request_id!r} is already running")
        request = Request(request_id, [int(t) for t in prompt_token_ids], params, prompt, priority, cache_salt)
        templates = self._row_templates(params)
        sequences = self.scheduler.add(request)
        outputs = [SequenceOutput(s, self.tokenizer, self.eos_token_ids) for s in sequences]
        state = self.requests[request_id] = RequestState(request, outputs, output_kind)
        for seq, out, template in zip(sequences, outputs, templates, strict=True):
            self._outputs[seq.seq_id], self._states[seq.seq_id] = out, state
            self._templates[seq.seq_id] = template
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request at once and frees its blocks; returns its last output, None where it is not running."""
        state = self.requests.get(request_id)
        if state is None:
            return None
        self.scheduler.abort(request_id)
        return self._close(state)

    def step(self) -> list[RequestOutput]:
        """Launches the next step and returns what the previous one produced."""
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        flight = None
        if plan is not None:
            flight = self._launch_forward(plan, time.perf_counter() - start)
        outputs = self._collect(self._flight, flight.stats if flight else None)
        if flight is not None:
            start = time.perf_counter()
            self._launch_sampler(flight)
            flight.stats.sampler_s = time.perf_counter() - start
            self.stats.append(flight.stats)
        self._flight, self.last_plan = flight, plan
        return outputs

    # One step, in order.

    def _launch_forward(self, plan: StepPlan, schedule_s: float) -> _Flight:
        start = time.perf_counter()
        buckets, ledger = self.runner.buckets, self.runner.ledger
        # Only the mixed step hands out every hidden state, which prompt log-probabilities need.
        scored = any(self._states[row.seq_id].prompt_logprobs is not None for row in plan.rows)
        kind = "decode" if plan.is_decode and not scored else "mixed"
        sizes, needed = (buckets.decode, len(plan.rows)) if kind == "decode" else (buckets.mixed, plan.num_tokens)
        bucket = ledger.pick(kind, sizes, needed)
        packed, samples = self._builder.build(plan, buckets.shape(kind, bucket))
        stats = StepStats(plan.step_id, kind, bucket, plan.num_tokens, len(plan.rows), len(samples), schedule_s)
        stats.build_s = time.perf_counter() - start
        start = time.perf_counter()
        if plan.copies:
            self.runner.copy_blocks(plan.copies)
        rows, hidden = self.runner.forward(kind, bucket, packed)
        flight = _Flight(plan, samples, stats, rows)
        self._note_first_scheduled(plan)
        self._launch_scores(flight, hidden)
        stats.forward_s = time.perf_counter() - start
        return flight

    def _launch_scores(self, flight: _Flight, hidden: Any) -> None:
        """Scores the prompt positions of this step for requests that asked for prompt log-probabilities."""
        at = 0
        for row in flight.plan.rows:
            state = self._states[row.seq_id]
            first, at = at, at + row.num_tokens
            if state.prompt_logprobs is None:
                continue
            prompt = state.request.prompt_token_ids
            last = min(row.start + row.num_tokens, len(prompt) - 1)      # the prompt's last position predicts no prompt token
            positions = list(range(row.start, last))
            if not positions:
                continue
            index = np.arange(first, first + len(positions), dtype=np.int32)
            targets = np.array(prompt[row.start + 1 : last + 1], np.int32)
            flight.scores.append((state, positions, self.runner.score(hidden, index, targets)))

    def _launch_sampler(self, flight: _Flight) -> None:
        samples = flight.samples
        if not samples:
            return
        # Every earlier id is known by now; what is pending is this step's own.
        flight.full = any(needs_full(s.seq.request.params, s.seq.num_output_tokens - 1) for s in samples)
        kind = "sample" if flight.full else "greedy"
        sizes = self.runner.buckets.sample if flight.full else self.runner.buckets.greedy
        bucket = self.runner.ledger.pick(kind, sizes, len(samples))
        slots = [s.slot for s in samples]
        if flight.full:
            for sample in samples:
                self._settle(sample)
            packed = self._rows.build(
                slots, [s.position for s in samples], bucket, lambda i: (samples[i].seq.output_token_ids, 0)
            )
            flight.result = self.runner.sample(flight.rows, packed)
        else:
            padded = np.full(bucket, self.config.scheduler.max_num_seqs, np.int32)      # padding rows: the spare slot
            padded[: len(slots)] = slots
            flight.result = self.runner.greedy(flight.rows, padded)

    def _collect(self, flight: _Flight | None, stats: StepStats | None) -> list[RequestOutput]:
        """Reads a step's results: ids to sequences, text to outputs, ended sequences out of the scheduler."""
        if flight is None:
            return []
        start = time.perf_counter()
        result = None if flight.result is None else _to_host(flight.result, flight.full)
        waited = time.perf_counter()
        touched: dict[str, RequestState] = {}
        for state, positions, scores in flight.scores:
            self._add_prompt_logprobs(state, positions, scores)
        sampled = {s.seq.seq_id for s in flight.samples}
        for row in flight.plan.rows:
            if row.seq_id not in sampled and row.seq_id in self._outputs:
                self._take_unsampled(self._sequence(row.seq_id), row.start + row.num_tokens, touched)
        for i, sample in enumerate(flight.samples):
            if sample.seq.is_finished:
                continue      # aborted, or ended by the step before
            state = self._states[sample.seq.seq_id]
            touched[state.request.request_id] = state
            assert result is not None
            self._take(sample.seq, state, result, i)
        outputs = []
        for state in touched.values():
            if state.finished:
                outputs.append(self._close(state))
            elif state.kind != "final_only":
                outputs.append(state.output())
        if stats is not None:
            stats.wait_s, stats.output_s = waited - start, time.perf_counter() - waited
        return outputs

    def _take(self, seq: Sequence, state: RequestState, result: _HostResult, i: int) -> None:
        now = time.monotonic()
        if not result.finite[i]:
            state.error = "the model produced a logit that is not finite"
            self.scheduler.finish(seq, FinishReason.ERROR, register=False)
            return
        token_id = result.token_ids[i]
        if state.metrics.first_token_time is None:
            state.metrics.first_token_time = now
        self.scheduler.commit(seq, token_id)
        out = self._outputs[seq.seq_id]
        logprobs = None
        if out.logprobs is not None and result.logprobs is not None:
            logprobs = self._logprob_dict(token_id, result.logprobs, i, seq.request.params.logprobs or 0)
        ended = out.append(token_id, logprobs)
        if ended is not None:
            self.scheduler.finish(seq, *ended)

    def _take_unsampled(self, seq: Sequence, num_computed: int, touched: dict[str, RequestState]) -> None:
        """A chunk of a prompt was computed; a request without output ends with its prompt."""
        if seq.is_finished:
            return
        self.scheduler.commit_computed(seq, num_computed)
        if seq.request.params.max_tokens == 0 and num_computed >= seq.num_prompt_tokens:
            state = self._states[seq.seq_id]
            touched[state.request.request_id] = state
            for out in state.outputs:
                self.scheduler.finish(out.seq, FinishReason.LENGTH)

    # Small parts.

    def _sequence(self, seq_id: int) -> Sequence:
        return self._outputs[seq_id].seq

    def _close(self, state: RequestState) -> RequestOutput:
        state.metrics.finished_time = time.monotonic()
        output = state.output()
        del self.requests[state.request.request_id]
        for out in state.outputs:
            seq_id = out.seq.seq_id
            del self._outputs[seq_id], self._states[seq_id], self._templates[seq_id]
        return output

    def _settle(self, sample: SampleRow) -> None:
        """Gives a slot to the sequence that is new to it: its sampling row and, with penalties, its counts."""
        seq = sample.seq
        tenant = (seq.seq_id, seq.num_preemptions)
        if seq.is_finished or self._tenants.get(sample.slot) == tenant:
            return
        self._tenants[sample.slot] = tenant
        self._rows.set(sample.slot, self._templates[seq.seq_id])
        if has_penalties(seq.request.params):
            self.runner.reset_slot(sample.slot, seq.token_ids, seq.num_prompt_tokens)

    def _note_first_scheduled(self, plan: StepPlan) -> None:
        for row in plan.rows:
            metrics = self._states[row.seq_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = time.monotonic()

    def _add_prompt_logprobs(self, state: RequestState, positions: list[int], scores: list[Any]) -> None:
        prompt = state.request.prompt_token_ids
        assert state.prompt_logprobs is not None
        parts = [LogprobArrays.read(s) for s in scores]
        for i, position in enumerate(positions):
            state.prompt_logprobs[position + 1] = self._logprob_dict(
                prompt[position + 1], parts[i // SCORE_ROWS], i % SCORE_ROWS, state.request.params.prompt_logprobs or 0
            )

    def _logprob_dict(self, token_id: int, arrays: LogprobArrays, row: int, count: int) -> dict[int, Logprob]:
        """The token's own entry first, then the top `count`."""
        own = Logprob(float(arrays.logprobs[row]), int(arrays.ranks[row]), self._text(token_id))
        entries = {token_id: own}
        top = zip(arrays.top_ids[row, :count].tolist(), arrays.top_logprobs[row, :count].tolist(), strict=True)
        for rank, (top_id, value) in enumerate(top, 1):
            if top_id not in entries:
                entries[top_id] = Logprob(value, rank, self._text(top_id))
        return entries

    def _text(self, token_id: int) -> str | None:
        return None if self.tokenizer is None else self.tokenizer.token_text(token_id)

    def _row_templates(self, params: SamplingParams) -> list[RowTemplate]:
        """One sampling row for each of the request's n sequences."""
        assert params.seed is not None
        stop_ids = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else self.eos_token_ids)
        bad_words = self._bad_word_ids(params)
        return [
            RowTemplate.pack(params, self.runner.cfg.vocab_size, params.seed, i, sorted(stop_ids), bad_words)
            for i in range(params.n)
        ]

    def _bad_word_ids(self, params: SamplingParams) -> list[list[int]]:
        """Each bad word as ids, at the start of a text and after a space."""
        if not params.bad_words:
            return []
        if self.tokenizer is None:
            raise ValueError(f"bad_words={params.bad_words!r} needs a tokenizer, and this engine has none")
        spellings = [prefix + word.lstrip() for word in params.bad_words for prefix in ("", " ")]
        ids = [tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in spellings]
        return [list(word) for word in dict.fromkeys(ids) if word]


@dataclass(frozen=True)
class LogprobArrays:
    """sampler.TokenLogprobs on the host."""

    logprobs: np.ndarray
    ranks: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @classmethod
    def read(cls, result: TokenLogprobs) -> LogprobArrays:
        return cls(*(np.asarray(getattr(result, f.name)) for f in fields(cls)))


@dataclass(frozen=True)
class _HostResult:
    token_ids: list[int]
    finite: list[bool]
    logprobs: LogprobArrays | None


def _to_host(result: SampleResult, full: bool) -> _HostResult:
    """Waits for the device."""
    logprobs = LogprobArrays.read(result.logprobs) if full and result.logprobs is not None else None
    return _HostResult(np.asarray(result.token_ids).tolist(), np.asarray(result.finite).tolist(), logprobs)
