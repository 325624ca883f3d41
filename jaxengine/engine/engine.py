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
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxengine.config import EngineConfig
from jaxengine.engine.batch import BatchBuilder, SampleRow
from jaxengine.engine.grammars import SequenceGrammars
from jaxengine.engine.output import OutputKind, RequestState, SequenceOutput
from jaxengine.engine.results import HostLogprobs, HostResult
from jaxengine.engine.runner import Runner
from jaxengine.engine.sampling_batch import has_penalties, needs_full, validate_bans, validate_ids
from jaxengine.engine.sampling_rows import RowBuilder
from jaxengine.engine.stats import EngineObserver, StepStats, TokensRead
from jaxengine.scheduler import BlockManager, BlockPools, Scheduler
from jaxengine.scheduler.limits import max_num_tokens
from jaxengine.structured import CompiledGrammar, GrammarCompiler, GrammarMatcher
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import (
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    Sequence,
    StepPlan,
)


@dataclass
class _Flight:
    """A step on the device whose results have not been read."""

    plan: StepPlan
    samples: list[SampleRow]      # one shard's after another's
    num_samples: list[int]        # of each shard
    stats: StepStats
    rows: Any = None
    result: Any = None
    places: np.ndarray | None = None      # row of each sample in the result; None: as they come
    wants_logprobs: bool = False
    scores: list[tuple[RequestState, list[int], int, list[Any]]] = field(default_factory=list)


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
        pools = [
            BlockManager(runner.memory.num_blocks, cache.block_size, cache.enable_prefix_caching)
            for _ in range(runner.num_shards)
        ]
        self.scheduler = Scheduler(config.scheduler, pools, max_model_len)
        self.stats: deque[StepStats] = deque(maxlen=4096)
        self.requests: dict[str, RequestState] = {}
        self.last_plan: StepPlan | None = None
        self.observer: EngineObserver | None = None
        self._outputs: dict[int, SequenceOutput] = {}
        self._states: dict[int, RequestState] = {}
        self._builder = BatchBuilder(
            config.scheduler.max_num_seqs, runner.buckets.blocks_per_seq, cache.block_size, self._sequence,
            runner.num_shards,
        )
        self._rows = RowBuilder(config.scheduler.max_num_seqs, runner.cfg.vocab_size, runner.num_shards)
        self.compiler: GrammarCompiler | None = None
        if tokenizer is not None:
            self.compiler = GrammarCompiler(tokenizer, eos_token_ids, runner.cfg.vocab_size)
        self._grammars = SequenceGrammars()
        # Sequences that want more than the likeliest ids. Most steps have none, and then no row is looked at.
        self._scored: set[int] = set()             # prompt log-probabilities
        self._with_logprobs: set[int] = set()
        self._full: set[int] = set()               # the full sampler, at least until their min_tokens are out
        self._flight: _Flight | None = None
        self._last_read = 0.0                      # when the last ids were read, on time.perf_counter's clock
        self._seeds = random.Random(config.seed)
        self._request_ids = itertools.count()
        self._tenants: dict[int, tuple[int, int]] = {}     # slot -> the sequence whose penalty counts it holds

    @property
    def ledger(self):
        return self.runner.ledger

    @property
    def memory_plan(self):
        return self.runner.memory

    @property
    def blocks(self) -> BlockPools:
        return self.scheduler.pools

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests) or self._flight is not None

    def add_request(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None, *, request_id: str | None = None,
        prompt: str | None = None, priority: int = 0, cache_salt: str | None = None,
        output_kind: OutputKind = "cumulative", grammar: CompiledGrammar | None = None,
        arrival_time: float | None = None,
    ) -> str:
        """Queues a request and returns its id. Raises ValueError for what can never be served.

        grammar: what `compile_grammar` made of params.structured_outputs; without it, this call compiles.
        arrival_time: when it came in, on time.monotonic's clock (default: now); its latencies count from there.
        """
        params = params or SamplingParams()
        request_id = request_id if request_id is not None else f"req-{next(self._request_ids)}"
        if request_id in self.requests:
            raise ValueError(f"request_id={request_id!r} is already running")
        request = Request(request_id, prompt_token_ids, params, prompt, priority, cache_salt)
        if arrival_time is not None:
            request.arrival_time = arrival_time
        bad_words = self.check_request(request)
        request.prompt_token_ids = [int(t) for t in prompt_token_ids]
        if params.seed is None:
            request.params = params = params.replace(seed=self._seeds.getrandbits(63))
        if grammar is None and (compiling := self.compile_grammar(params)) is not None:
            grammar = compiling.result()
        sequences = self.scheduler.add(request)
        outputs = [SequenceOutput(s, self.tokenizer, self.eos_token_ids) for s in sequences]
        state = self.requests[request_id] = RequestState(request, outputs, output_kind)
        for seq, out in zip(sequences, outputs, strict=True):
            self._outputs[seq.seq_id], self._states[seq.seq_id] = out, state
            self._rows.admit(seq, self._stop_ids(params), bad_words)
            self._note_wishes(seq)
            if grammar is not None:
                self._grammars.admit(seq, grammar)
        return request_id

    def compile_grammar(self, params: SamplingParams) -> Future[CompiledGrammar] | None:
        """Starts to compile the request's structured_outputs on another thread; None where it has none.

        The future raises ValueError for a grammar that is refused. Any thread may ask.
        """
        if params.structured_outputs is None:
            return None
        if self.compiler is None:
            raise ValueError("structured_outputs needs a tokenizer, and this engine has none")
        return self.compiler.submit(params.structured_outputs)

    def check_request(self, request: Request) -> list[list[int]]:
        """Raises ValueError for a request that can never be served; returns its bad words as token ids.

        Reads only what never changes, so any thread may ask.
        """
        params, vocab_size = request.params, self.runner.cfg.vocab_size
        _check_ids(request.prompt_token_ids, vocab_size)
        validate_ids(params, vocab_size)
        if params.stop_strings and self.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs a tokenizer, and this engine has none; use stop_token_ids")
        bad_words = self._bad_word_ids(params)
        validate_bans(params, self._stop_ids(params), bad_words)
        max_num_tokens(request, self.config.scheduler, self.max_model_len, self.blocks.capacity)
        return bad_words

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
            flight = self._launch_forward(plan, start)
        outputs = self._collect(self._flight, flight.stats if flight else None)
        if flight is not None:
            start = time.perf_counter()
            self._launch_sampler(flight)
            flight.stats.sampler_s = time.perf_counter() - start
            self.stats.append(flight.stats)
        self._flight, self.last_plan = flight, plan
        return outputs

    # One step, in order.

    def _launch_forward(self, plan: StepPlan, started: float) -> _Flight:
        start = time.perf_counter()
        buckets, ledger = self.runner.buckets, self.runner.ledger
        # Only the mixed step hands out every hidden state, which prompt log-probabilities need.
        scored = bool(self._scored) and any(row.seq_id in self._scored for row in plan.rows)
        kind = "decode" if plan.is_decode and not scored else "mixed"
        needed = max(len(shard.rows) if plan.is_decode else shard.num_tokens for shard in plan.shards)
        sizes = buckets.decode if kind == "decode" else buckets.mixed
        bucket = ledger.pick(kind, sizes, needed)
        packed, by_shard = self._builder.build(plan, buckets.shape(kind, bucket))
        samples = [sample for samples in by_shard for sample in samples]
        stats = StepStats(
            plan.step_id, kind, bucket * len(plan.shards), len(plan.rows) if plan.is_decode else plan.num_tokens,
            len(plan.rows), len(samples), start - started, started=started,
        )
        stats.build_s = time.perf_counter() - start
        start = time.perf_counter()
        if any(shard.copies for shard in plan.shards):
            self.runner.copy_blocks(plan.shards)
        rows, hidden = self.runner.forward(kind, bucket, packed)
        flight = _Flight(plan, samples, [len(samples) for samples in by_shard], stats, rows)
        if scored:
            for shard in range(len(plan.shards)):
                self._launch_scores(flight, shard, hidden)
        stats.forward_s = time.perf_counter() - start
        return flight

    def _launch_scores(self, flight: _Flight, shard: int, hidden: Any) -> None:
        """Scores the prompt positions of a shard's step for requests that asked for prompt log-probabilities."""
        at = 0
        for row in flight.plan.shards[shard].rows:
            state = self._states[row.seq_id]
            first, at = at, at + row.num_tokens
            if state.prompt_logprobs is None:
                continue
            prompt = state.request.prompt_token_ids
            last = min(row.start + row.num_tokens, len(prompt) - 1)      # what follows the prompt is not its own
            positions = list(range(row.start, last))
            if not positions:
                continue
            index = np.arange(first, first + len(positions), dtype=np.int32)
            targets = np.array(prompt[row.start + 1 : last + 1], np.int32)
            flight.scores.append((state, positions, shard, self.runner.score(hidden, index, targets, shard)))

    def _launch_sampler(self, flight: _Flight) -> None:
        samples = flight.samples
        if not samples:
            return
        # Every earlier id is known by now; what is pending is this step's own.
        full = bool(self._full) and any(
            s.seq.seq_id in self._full and needs_full(s.seq.request.params, s.seq.num_output_tokens - 1)
            for s in samples
        )
        flight.wants_logprobs = bool(self._with_logprobs) and any(s.seq.seq_id in self._with_logprobs for s in samples)
        kind, sizes = ("sample", self.runner.buckets.sample) if full else ("greedy", self.runner.buckets.greedy)
        bucket = self.runner.ledger.pick(kind, sizes, max(flight.num_samples))
        flight.places = _places(flight.num_samples, bucket)
        if full:
            for sample in samples:
                self._restore_counts(sample)
            masks = self._grammars.masks(samples)
            flight.result = self.runner.sample(flight.rows, self._rows.build(samples, bucket, masks, flight.places))
        else:
            limit = self.config.scheduler.max_num_seqs
            slots = np.full(bucket * len(flight.num_samples), limit, np.int32)      # padding rows: the spare slot
            at = slice(len(samples)) if flight.places is None else flight.places
            slots[at] = [s.slot % limit for s in samples]
            flight.result = self.runner.greedy(flight.rows, slots)

    def _collect(self, flight: _Flight | None, stats: StepStats | None) -> list[RequestOutput]:
        """Reads a step's results: ids to sequences, text to outputs, ended sequences out of the scheduler."""
        if flight is None:
            return []
        start = time.perf_counter()
        result = None
        if flight.result is not None:
            result = HostResult.read(flight.result, flight.wants_logprobs, flight.places)
        waited, read = time.perf_counter(), TokensRead(time.monotonic())
        flight.stats.step_s = waited - max(self._last_read, flight.stats.started)
        self._last_read = waited
        touched: dict[RequestState, None] = {}      # a set in the order of the rows
        for score in flight.scores:
            self._add_prompt_logprobs(*score)
        for row in flight.plan.rows:
            if not row.sample and row.seq_id in self._outputs:
                self._take_unsampled(self._sequence(row.seq_id), row.start + row.num_tokens, touched)
        for i, sample in enumerate(flight.samples):
            if sample.seq.is_finished:
                continue      # aborted, or ended by the step before
            state = self._states[sample.seq.seq_id]
            touched[state] = None
            assert result is not None
            self._take(sample.seq, state, result, i, read)
        outputs = []
        for state in touched:
            if state.finished:
                outputs.append(self._close(state))
            elif state.kind != "final_only":
                outputs.append(state.output())
        if self.observer is not None:
            self.observer.step_read(flight.stats, read)
        if stats is not None:
            stats.wait_s, stats.output_s = waited - start, time.perf_counter() - waited
        return outputs

    def _take(self, seq: Sequence, state: RequestState, result: HostResult, i: int, read: TokensRead) -> None:
        grammar = self._grammars.get(seq)
        if grammar is not None and (grammar.ended or grammar.error):      # before this token: it was not to be
            self._end_by_grammar(seq, state, grammar)
            return
        if not result.finite[i]:
            state.error = "a logit of the model is not finite, or no token is allowed"
            self.scheduler.finish(seq, FinishReason.ERROR, register=False)
            return
        token_id = result.token_ids[i]
        if state.metrics.first_token_time is None:
            state.metrics.first_token_time, state.metrics.first_scheduled_time = read.now, seq.first_scheduled_time
            read.started.append(state.request)
        read.num_tokens += 1
        if (last := seq.last_token_time) is not None:
            read.followers[last] = read.followers.get(last, 0) + 1
        seq.last_token_time = read.now
        self.scheduler.commit(seq, token_id)
        out = self._outputs[seq.seq_id]
        logprobs = None
        if out.logprobs is not None and result.logprobs is not None:
            logprobs = result.logprobs.entry(i, token_id, seq.request.params.logprobs or 0, self._text)
        ended = out.append(token_id, logprobs)
        if grammar is not None and (ended is None or ended[0] is FinishReason.LENGTH):
            grammar.consume(token_id)
            if grammar.ended or (grammar.error and ended is None):
                self._end_by_grammar(seq, state, grammar)
                return
        if ended is not None:
            self.scheduler.finish(seq, *ended)

    def _end_by_grammar(self, seq: Sequence, state: RequestState, grammar: GrammarMatcher) -> None:
        """The text is complete, even for a request that ignores EOS; or its grammar has failed."""
        self._outputs[seq.seq_id].flush()
        state.error = grammar.error or state.error
        self.scheduler.finish(seq, FinishReason.ERROR if grammar.error else FinishReason.STOP)

    def _take_unsampled(self, seq: Sequence, num_computed: int, touched: dict[RequestState, None]) -> None:
        """A chunk of a prompt was computed; a request without output ends with its prompt."""
        if seq.is_finished:
            return
        self.scheduler.commit_computed(seq, num_computed)
        if seq.request.params.max_tokens == 0 and num_computed >= seq.num_prompt_tokens:
            state = self._states[seq.seq_id]
            touched[state] = None
            for out in state.outputs:
                self.scheduler.finish(out.seq, FinishReason.LENGTH)

    # Small parts.

    def _sequence(self, seq_id: int) -> Sequence:
        return self._outputs[seq_id].seq

    def _close(self, state: RequestState) -> RequestOutput:
        state.metrics.finished_time = time.monotonic()
        state.metrics.first_scheduled_time = state.outputs[0].seq.first_scheduled_time
        output = state.output()
        del self.requests[state.request.request_id]
        for out in state.outputs:
            seq_id = out.seq.seq_id
            del self._outputs[seq_id], self._states[seq_id]
            self._rows.release(out.seq)
            self._grammars.release(out.seq)
            for wishes in (self._scored, self._with_logprobs, self._full):
                wishes.discard(seq_id)
        if self.observer is not None:
            self.observer.request_ended(state)
        return output

    def _restore_counts(self, sample: SampleRow) -> None:
        """A sequence with penalties that is new to its slot gets its counts written there."""
        seq = sample.seq
        tenant = (seq.seq_id, seq.num_preemptions)
        if has_penalties(seq.request.params) and self._tenants.get(sample.slot) != tenant:
            self.runner.reset_slot(sample.slot, seq.request.prompt_token_ids, seq.output_token_ids)
            self._tenants[sample.slot] = tenant

    def _note_wishes(self, seq: Sequence) -> None:
        params = seq.request.params
        if params.prompt_logprobs is not None:
            self._scored.add(seq.seq_id)
        if params.logprobs is not None:
            self._with_logprobs.add(seq.seq_id)
        if needs_full(params):
            self._full.add(seq.seq_id)

    def _add_prompt_logprobs(
        self, state: RequestState, positions: list[int], shard: int, scores: list[Any]
    ) -> None:
        prompt, size = state.request.prompt_token_ids, self.runner.buckets.score
        assert state.prompt_logprobs is not None
        parts = [HostLogprobs.read(s, slice(shard * size, (shard + 1) * size)) for s in scores]
        for i, position in enumerate(positions):
            state.prompt_logprobs[position + 1] = parts[i // size].entry(
                i % size, prompt[position + 1], state.request.params.prompt_logprobs or 0, self._text
            )

    def _text(self, token_id: int) -> str | None:
        return None if self.tokenizer is None else self.tokenizer.token_text(token_id)

    def _stop_ids(self, params: SamplingParams) -> set[int]:
        """What min_tokens holds back: every id that may end a sequence, EOS even where it is ignored, as in vLLM."""
        return {*(params.stop_token_ids or ()), *self.eos_token_ids}

    def _bad_word_ids(self, params: SamplingParams) -> list[list[int]]:
        """Each bad word as ids, at the start of a text and after a space."""
        if not params.bad_words:
            return []
        if self.tokenizer is None:
            raise ValueError(f"bad_words={params.bad_words!r} needs a tokenizer, and this engine has none")
        spellings = [prefix + word.lstrip() for word in params.bad_words for prefix in ("", " ")]
        ids = [tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in spellings]
        return [list(word) for word in dict.fromkeys(ids) if word]


def _check_ids(token_ids: list[int], vocab_size: int) -> None:
    """A gather on the device would clamp a wrong id instead of failing."""
    if not token_ids:
        raise ValueError("prompt_token_ids=[]: a prompt needs at least one token")
    for t in token_ids:
        if isinstance(t, bool) or not isinstance(t, (int, np.integer)) or not 0 <= t < vocab_size:
            raise ValueError(f"prompt_token_ids: {t!r} is not a token id in [0, {vocab_size})")


def _places(num_samples: list[int], bucket: int) -> np.ndarray | None:
    """The rows of samples that lie shard by shard, each shard having `bucket` rows."""
    if len(num_samples) == 1:
        return None
    return np.concatenate([shard * bucket + np.arange(n) for shard, n in enumerate(num_samples)])
