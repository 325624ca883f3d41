"""From a StepPlan to work on the device: the forward first, and later, when every earlier id is known, the sampler."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxengine.engine.batch import BatchBuilder, SampleRow
from jaxengine.engine.live import Live
from jaxengine.engine.output import RequestState
from jaxengine.engine.runner import Runner
from jaxengine.engine.sampling_batch import has_penalties, needs_full
from jaxengine.engine.sampling_rows import RowBuilder
from jaxengine.engine.stats import StepStats
from jaxengine.types import Sequence, StepPlan


@dataclass
class Scores:
    """Prompt log-probabilities on their way: of `positions` of a request's prompt, computed by a shard."""

    state: RequestState
    positions: list[int]
    shard: int
    results: list[Any]


@dataclass
class Flight:
    """A step on the device whose results have not been read."""

    plan: StepPlan
    samples: list[SampleRow]      # one shard's after another's
    num_samples: list[int]        # of each shard
    stats: StepStats
    rows: Any = None
    result: Any = None
    places: np.ndarray | None = None      # row of each sample in the result; None: as they come
    wants_logprobs: bool = False
    scores: list[Scores] = field(default_factory=list)


class Launcher:
    """Builds what the compiled steps read, picks their buckets, and dispatches them."""

    def __init__(self, runner: Runner, max_num_seqs: int, block_size: int, live: Live) -> None:
        self.runner, self.live, self._max_num_seqs = runner, live, max_num_seqs
        shards = runner.num_shards
        self._builder = BatchBuilder(
            max_num_seqs, runner.buckets.blocks_per_seq, block_size, live.sequence, shards
        )
        self._rows = RowBuilder(max_num_seqs, runner.cfg.vocab_size, shards)
        self._tenants: dict[int, tuple[int, int]] = {}     # slot -> the sequence whose penalty counts it holds

    def admit(self, seq: Sequence, stop_ids: Iterable[int], bad_words: list[list[int]]) -> None:
        self._rows.admit(seq, stop_ids, bad_words)

    def release(self, seq: Sequence) -> None:
        self._rows.release(seq)

    def forward(self, plan: StepPlan, started: float) -> Flight:
        """started: when the step's planning began, on time.perf_counter's clock."""
        start = time.perf_counter()
        buckets, ledger, scored = self.runner.buckets, self.runner.ledger, self.live.scored
        # Only the mixed step hands out every hidden state, which prompt log-probabilities need.
        is_scored = bool(scored) and any(row.seq_id in scored for row in plan.rows)
        kind = "decode" if plan.is_decode and not is_scored else "mixed"
        needed = max(len(shard.rows) if plan.is_decode else shard.num_tokens for shard in plan.shards)
        bucket = ledger.pick(kind, buckets.decode if kind == "decode" else buckets.mixed, needed)
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
        flight = Flight(plan, samples, [len(samples) for samples in by_shard], stats, rows)
        if is_scored:
            for shard in range(len(plan.shards)):
                self._score(flight, shard, hidden)
        stats.forward_s = time.perf_counter() - start
        return flight

    def _score(self, flight: Flight, shard: int, hidden: Any) -> None:
        """Scores the prompt positions of a shard's step for requests that asked for prompt log-probabilities."""
        at = 0
        for row in flight.plan.shards[shard].rows:
            state = self.live.states[row.seq_id]
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
            flight.scores.append(Scores(state, positions, shard, self.runner.score(hidden, index, targets, shard)))

    def sampler(self, flight: Flight) -> None:
        """Every earlier id must be known by now; what is pending is this step's own."""
        start, samples, live = time.perf_counter(), flight.samples, self.live
        if not samples:
            return
        full = bool(live.full) and any(
            s.seq.seq_id in live.full and needs_full(s.seq.request.params, s.seq.num_output_tokens - 1)
            for s in samples
        )
        flight.wants_logprobs = bool(live.with_logprobs) and any(s.seq.seq_id in live.with_logprobs for s in samples)
        kind, sizes = ("sample", self.runner.buckets.sample) if full else ("greedy", self.runner.buckets.greedy)
        bucket = self.runner.ledger.pick(kind, sizes, max(flight.num_samples))
        flight.places = _places(flight.num_samples, bucket)
        if full:
            for sample in samples:
                self._restore_counts(sample)
            masks = live.grammars.masks(samples)
            flight.result = self.runner.sample(flight.rows, self._rows.build(samples, bucket, masks, flight.places))
        else:
            limit = self._max_num_seqs
            slots = np.full(bucket * len(flight.num_samples), limit, np.int32)      # padding rows: the spare slot
            slots[slice(len(samples)) if flight.places is None else flight.places] = [s.slot % limit for s in samples]
            flight.result = self.runner.greedy(flight.rows, slots)
        flight.stats.sampler_s = time.perf_counter() - start

    def _restore_counts(self, sample: SampleRow) -> None:
        """A sequence with penalties that is new to its slot gets its counts written there."""
        seq = sample.seq
        tenant = (seq.seq_id, seq.num_preemptions)
        if has_penalties(seq.request.params) and self._tenants.get(sample.slot) != tenant:
            self.runner.reset_slot(sample.slot, seq.request.prompt_token_ids, seq.output_token_ids)
            self._tenants[sample.slot] = tenant


def _places(num_samples: list[int], bucket: int) -> np.ndarray | None:
    """The rows of samples that lie shard by shard, each shard having `bucket` rows."""
    if len(num_samples) == 1:
        return None
    return np.concatenate([shard * bucket + np.arange(n) for shard, n in enumerate(num_samples)])
