"""A stand-in for the device and the engine's loop, for tests of the scheduler.

The pool holds, for every position, a digest of all ids up to it. So what a row reads through its block table
tells whether each earlier position holds exactly its own sequence's context: a block that is shared wrongly,
stale, or not copied on write shows at once. The "model" is a function of that digest, and so of the context
alone: every output has one right answer, whatever the schedule.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from jaxengine.config import SchedulerConfig
from jaxengine.scheduler import NULL_BLOCK, BlockManager, Scheduler
from jaxengine.types import FinishReason, Request, SamplingParams, Sequence, SequenceStatus, StepPlan

VOCAB = 50
STOP_ID = 0
BAD = "bad"     # what a poisoned token writes, and everything computed from it


def root(seq: Sequence) -> int:
    return zlib.crc32((seq.request.cache_salt or "no salt").encode())


def digest(before, token_id: int):
    return BAD if before == BAD else hash((before, token_id))     # of whole numbers: the same in every process


def sampled_id(context, index: int) -> int:
    return hash((context, index, -1)) % VOCAB


def stops(seq: Sequence, token_id: int) -> bool:
    return token_id == STOP_ID and not seq.request.params.ignore_eos


def expected_output(seq: Sequence) -> list[int]:
    """What a sequence yields alone: to its first stop id or its limit."""
    context, ids = root(seq), []
    for token_id in seq.request.prompt_token_ids:
        context = digest(context, token_id)
    while len(ids) < seq.max_num_tokens - seq.num_prompt_tokens and not (ids and stops(seq, ids[-1])):
        ids.append(sampled_id(context, seq.index))
        context = digest(context, ids[-1])
    return ids


def request(
    name: str, prompt: list[int], max_tokens: int | None = 8, n: int = 1, arrival: float = 0.0,
    ignore_eos: bool = True, **fields,
) -> Request:
    params = SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=ignore_eos)
    return Request(name, prompt, params, arrival_time=arrival, **fields)


@dataclass
class FakeEngine:
    """Runs a scheduler against the fake device, reading every step's results one step late."""

    scheduler: Scheduler
    poison: int | None = None                             # this id makes a row fail
    seqs: dict[int, Sequence] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    pool: dict[tuple[int, int], list] = field(default_factory=dict)   # (shard, block) -> digest per position in it
    last_ids: dict[int, int] = field(default_factory=dict)   # slot -> the last id sampled there
    failed: list[int] = field(default_factory=list)
    _flight: tuple[StepPlan, dict] | None = None          # a dispatched plan and each row's last digest
    _sampled: dict[int, int | str] = field(default_factory=dict)   # of the flight, by sequence

    @property
    def block_size(self) -> int:
        return self.scheduler.pools[0].block_size

    def add(self, req: Request) -> list[Sequence]:
        seqs = self.scheduler.add(req)
        self.seqs |= {seq.seq_id: seq for seq in seqs}
        return seqs

    def step(self) -> bool:
        """One turn of the engine's loop. False: nothing was planned and nothing was left to read."""
        before = self._flight
        plan = self.scheduler.schedule()
        self._check_plan(plan)
        hidden = None if plan is None else self._forward(plan)
        if before is not None:
            self._read(before[0])
        self._flight, self._sampled = None, {}
        if plan is not None and hidden is not None:
            self.plans.append(plan)
            self._flight = (plan, hidden)
            self._sample(plan, hidden)
        return plan is not None or before is not None

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.step():
                assert not self.scheduler.has_unfinished, "nothing to compute, nothing to read, but not done"
                return
        raise AssertionError(f"not done after {max_steps} steps")

    # The device.

    def _forward(self, plan: StepPlan) -> dict:
        size = self.block_size
        for i, shard in enumerate(plan.shards):
            for source, destination in shard.copies:
                self.pool[i, destination] = list(self.pool[i, source])
        hidden = {}
        for row in plan.rows:
            seq = self.seqs[row.seq_id]
            known = [*seq.token_ids, self.last_ids.get(row.slot)][: row.start + row.num_tokens]
            assert len(known) == row.start + row.num_tokens, "more than one id of a row is unknown"
            context = self._verify_context(seq, known[: row.start])
            for position in range(row.start, row.start + row.num_tokens):
                context = BAD if known[position] == self.poison else digest(context, known[position])
                block = seq.block_table[position // size]
                assert block != NULL_BLOCK
                self.pool.setdefault((seq.shard, block), [None] * size)[position % size] = context
            hidden[row.seq_id] = context
        # Rows of one step must not write into each other's context.
        for row in plan.rows:
            seq = self.seqs[row.seq_id]
            end = row.start + row.num_tokens - 1
            assert self.pool[seq.shard, seq.block_table[end // size]][end % size] == hidden[row.seq_id]
        return hidden

    def _verify_context(self, seq: Sequence, ids: list[int]):
        """The pool, read through the block table, holds the sequence's context. Returns the last digest."""
        size, context = self.block_size, root(seq)
        for position, token_id in enumerate(ids):
            stored = self.pool[seq.shard, seq.block_table[position // size]][position % size]
            context = BAD if BAD in (context, stored) and self.poison is not None else digest(context, token_id)
            assert stored == context, f"sequence {seq.seq_id} reads another context at position {position}"
        return context

    def _sample(self, plan: StepPlan, hidden: dict) -> None:
        children: dict[int, list[tuple[int, int]]] = {}
        for shard in plan.shards:
            for parent, child, slot in shard.forks:
                children.setdefault(parent, []).append((child, slot))
        for row in plan.rows:
            if row.sample:
                for seq_id, slot in ((row.seq_id, row.slot), *children.get(row.seq_id, ())):
                    context = hidden[row.seq_id]
                    sample = BAD if context == BAD else sampled_id(context, self.seqs[seq_id].index)
                    self._sampled[seq_id] = sample
                    self.last_ids[slot] = -1 if isinstance(sample, str) else sample

    # The host.

    def _read(self, plan: StepPlan) -> None:
        for row in plan.rows:
            seq = self.seqs[row.seq_id]
            end = row.start + row.num_tokens
            if not row.sample and not seq.is_finished:
                self.scheduler.commit_computed(seq, end)
                if seq.request.params.max_tokens == 0 and end == seq.num_prompt_tokens:
                    for sibling in range(seq.seq_id, seq.seq_id + seq.request.params.n):
                        self.scheduler.finish(self.seqs[sibling], FinishReason.LENGTH)
        for seq_id, sample in self._sampled.items():
            self._take(self.seqs[seq_id], sample)

    def _take(self, seq: Sequence, sample: int | str) -> None:
        if isinstance(sample, str):
            if not seq.is_finished:
                self.failed.append(seq.seq_id)
            self.scheduler.finish(seq, FinishReason.ERROR, register=False)
        elif self.scheduler.commit(seq, sample):
            if stops(seq, sample):
                self.scheduler.finish(seq, FinishReason.STOP, sample)
            elif len(seq.token_ids) >= seq.max_num_tokens:
                self.scheduler.finish(seq, FinishReason.LENGTH)

    # Invariants of a plan and of the state after planning.

    def _check_plan(self, plan: StepPlan | None) -> None:
        scheduler, config = self.scheduler, self.scheduler.config
        scheduler.check()
        slots = [s.slot for s in self.seqs.values() if s.slot >= 0]
        assert len(set(slots)) == len(slots)
        assert all(s.slot // config.max_num_seqs == s.shard for s in self.seqs.values() if s.slot >= 0)
        for seq in scheduler.waiting:
            assert (seq.num_computed_tokens, seq.block_table, seq.status) == (0, [], SequenceStatus.WAITING)
        if plan is None:
            return
        assert plan.rows
        assert len({row.seq_id for row in plan.rows}) == len(plan.rows)
        for i, shard in enumerate(plan.shards):
            assert shard.num_tokens <= config.max_num_batched_tokens
            assert [row.num_tokens == 1 for row in shard.rows] == [
                at < shard.num_decodes for at in range(len(shard.rows))
            ], "one-token rows first"
            assert all(self.seqs[row.seq_id].shard == i for row in shard.rows)
        assert not set(plan.preempted) & {row.seq_id for row in plan.rows}
        for row in plan.rows:
            seq = self.seqs[row.seq_id]
            assert row.num_tokens >= 1
            assert row.slot == seq.slot
            assert not seq.is_finished
            assert seq.num_tokens <= max(seq.max_num_tokens, seq.num_prompt_tokens), "planned beyond its end"
            assert len(seq.block_table) == scheduler.pools[seq.shard].blocks_for(seq.num_computed_tokens)
            if row.start == len(seq.token_ids):
                assert row.num_tokens == 1


def make_engine(
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_model_len: int = 64,
    enable_prefix_caching: bool = True,
    poison: int | None = None,
    num_shards: int = 1,
    **config,
) -> FakeEngine:
    pools = [BlockManager(num_blocks, block_size, enable_prefix_caching) for _ in range(num_shards)]
    settings = SchedulerConfig(max_num_seqs, max_num_batched_tokens, **config)
    return FakeEngine(Scheduler(settings, pools, max_model_len), poison)
