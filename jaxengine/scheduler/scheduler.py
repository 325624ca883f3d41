"""Continuous batching: which tokens of which sequences the next step computes.

The device runs one step ahead of what the host has read, so a plan may count on ids that are sampled but
not known yet (Sequence.num_pending). The caller's part, in this order for ever:

    plan = schedule(); dispatch it; read the results of the plan before it: `commit` each sampled id,
    `commit_computed` each row without a sample, and `finish` what has ended.

A sequence has ended at the latest when `len(token_ids) >= max_num_tokens`: FinishReason.LENGTH. Where
`schedule` returns None although `has_unfinished`, the results of an earlier plan are still to be read.
Results of a sequence that is meanwhile finished are ignored. One thread at a time.

Data parallelism: every shard has its own pool, slots and budget; the queue is one. A sequence goes to a shard
when it is first admitted and stays there, so preemption happens within a shard.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ordered
from heapq import merge

from jaxengine.config import SchedulerConfig
from jaxengine.scheduler.block_manager import BlockManager
from jaxengine.scheduler.block_pools import BlockPools
from jaxengine.scheduler.draft import Draft, Offer
from jaxengine.scheduler.limits import max_num_tokens
from jaxengine.scheduler.policies import POLICIES
from jaxengine.scheduler.roster import Roster
from jaxengine.types import UNASSIGNED, FinishReason, PlannedRow, Request, Sequence, SequenceStatus, StepPlan

ADMISSION_RESERVE = 0.01   # share of the pool kept free at admission, so that decodes may grow


class Scheduler:
    """Plans steps for the sequences in its roster.

    `config` limits what one shard does in a step; `pools` holds the blocks of each shard, one without data
    parallelism.
    """

    def __init__(self, config: SchedulerConfig, pools: Ordered[BlockManager], max_model_len: int) -> None:
        if config.policy not in POLICIES:
            raise ValueError(f"policy={config.policy!r} is not known; known: {', '.join(POLICIES)}")
        self.config = config
        self.pools = BlockPools(pools)
        self.max_model_len = max_model_len
        self.num_preemptions = 0
        self._roster = Roster(POLICIES[config.policy], config.max_num_seqs, len(self.pools))
        self._reserve = int(ADMISSION_RESERVE * self.pools[0].num_blocks)      # in each pool
        self._next_step_id = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self._roster.by_request)

    @property
    def num_running(self) -> int:
        return sum(map(len, self._roster.running))

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """In policy order."""
        return tuple(merge(*self._roster.running, key=self._roster.order))

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """In policy order."""
        return tuple(self._roster.waiting)

    def waste(self) -> float:
        """Allocated but unused KV slots over allocated ones, 0 to 1."""
        return self.pools.waste(self.running)

    def check(self) -> None:
        """Asserts the invariants of queues, slots and blocks. For tests: walks everything."""
        self._roster.check()
        self.pools.check(self.running)

    # --- arrival, results, end --------------------------------------------------------------------------

    def add(self, request: Request) -> list[Sequence]:
        """Queues a request; returns its n sequences. Raises ValueError for one that can never be served.

        Output ends at max_tokens, at max_model_len, or where one sequence fills the whole pool, whichever
        comes first (Sequence.max_num_tokens). The first sequence computes the prompt for all n. With
        max_tokens=0 nothing is sampled: finish it once the prompt's last row is read.
        """
        if request.request_id in self._roster.by_request:
            raise ValueError(f"request_id={request.request_id!r} is in use; choose another one")
        limit = max_num_tokens(request, self.config, self.max_model_len, self.pools.capacity)
        return self._roster.add(request, limit)

    def commit(self, seq: Sequence, token_id: int) -> bool:
        """The oldest pending id of `seq` became known. False where the sequence has ended: drop the id."""
        if seq.is_finished:
            return False
        num_computed = len(seq.token_ids)   # the step that sampled this id computed all ids before it
        seq.token_ids.append(token_id)
        seq.num_pending -= 1
        self.commit_computed(seq, num_computed)
        return True

    def commit_computed(self, seq: Sequence, num_tokens: int) -> None:
        """A step that computed the first `num_tokens` tokens of `seq` was read, and its row was sound."""
        if seq.status is SequenceStatus.RUNNING:   # else its blocks are gone
            self.pools[seq.shard].register(seq, num_tokens)

    def finish(
        self, seq: Sequence, reason: FinishReason, stop_reason: int | str | None = None, register: bool = True
    ) -> None:
        """Ends a sequence in whatever state it is, and with it those of its request that wait for its prompt.

        register=False: its row failed, so nobody may reuse what it has computed.
        """
        if seq.is_finished:
            return
        if seq.shard != UNASSIGNED:
            if not register:
                self.pools[seq.shard].forget(seq)
            self._take_blocks(seq)
        for ended in self._roster.remove(seq):
            ended.finish_reason = reason
            ended.stop_reason = stop_reason

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends a request at any moment; returns the sequences that this ended, none for an unknown id."""
        seqs = list(self._roster.by_request.get(request_id, ()))
        for seq in seqs:
            self.finish(seq, FinishReason.ABORT)
        return seqs

    # --- planning ---------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plans the next step and advances the planned sequences. None: nothing can be computed now."""
        budget = self.config.max_num_batched_tokens
        drafts = [Draft(shard, pool, budget) for shard, pool in enumerate(self.pools)]
        for draft in drafts:
            self._plan_running(draft)
        if self._roster.waiting:
            self._admit(drafts)
        if not any(draft.decodes or draft.chunks for draft in drafts):
            return None
        self._next_step_id += 1
        return StepPlan(
            step_id=self._next_step_id - 1,
            shards=tuple(draft.plan() for draft in drafts),
            preempted=tuple(seq_id for draft in drafts for seq_id in draft.preempted),
        )

    def _plan_running(self, draft: Draft) -> None:
        """Decodes first: their tokens are set aside before any chunk. Served in policy order, so that
        preemption, which takes the last, never hits a sequence that is already in the plan."""
        todo = [(seq, _num_uncomputed(seq)) for seq in self._roster.running[draft.shard]]
        draft.budget -= sum(uncomputed == 1 for _, uncomputed in todo)
        for seq, uncomputed in todo:
            if seq.status is not SequenceStatus.RUNNING:
                return   # preempted for one before it, and so is everyone after it
            wanted = 1 if uncomputed == 1 else min(uncomputed, draft.budget)
            if wanted == 0:
                continue
            granted = self._grant(seq, wanted, draft)
            if granted == 0:
                return
            if uncomputed > 1:
                draft.budget -= granted
            self._plan_row(seq, granted, draft)

    def _grant(self, seq: Sequence, wanted: int, draft: Draft) -> int:
        """Blocks for up to `wanted` tokens, for one at least: preempts others for it. 0: preempted `seq`."""
        while True:
            granted = 1 if wanted == 1 else min(wanted, max(1, draft.pool.room(seq)))
            if draft.pool.allocate(seq, granted, draft.copies):
                return granted
            if self._preempt_last(draft) is seq:
                return 0

    def _admit(self, drafts: list[Draft]) -> None:
        """Admits in policy order. One that does not fit yet holds back all after it, or it might starve: all
        that want its shard where it has one, else all."""
        waiting, running = self._roster.waiting, self._roster.running
        # Not where sequences were preempted: their blocks would at once go to them again.
        takers = {draft.shard: draft for draft in drafts if not draft.preempted and draft.budget > 0}
        for shard, draft in takers.items():
            growth = sum(draft.pool.blocks_for(s.num_tokens) - len(s.block_table) for s in running[shard])
            draft.reserved = self._reserve + growth
        at = 0
        while at < len(waiting) and takers:
            seq = waiting[at]
            asked = takers.values() if seq.shard == UNASSIGNED else [takers[seq.shard]] if seq.shard in takers else []
            offers = [offer for draft in asked if (offer := self._offer(seq, draft))]
            if offers:
                offer = min(offers, key=lambda o: (o.load, len(running[o.draft.shard])))
                self._start(seq, offer)
                if offer.draft.budget == 0:
                    del takers[offer.draft.shard]
            elif seq.shard == UNASSIGNED:
                return
            else:
                takers.pop(seq.shard, None)
                at += 1

    def _offer(self, seq: Sequence, draft: Draft) -> Offer | None:
        """None where the shard cannot take `seq` now."""
        # A preempted sequence may have an id in flight: it cannot be recomputed before that is known.
        if seq.num_pending or not self._roster.has_slots_for(seq, draft.shard):
            return None
        pool = draft.pool
        prefix = pool.match(seq)
        wanted = self._first_chunk(seq.num_tokens - len(prefix) * pool.block_size, draft.budget)
        # Counts the whole prompt, and a copied block for each sibling, though only a chunk is taken now.
        needed = pool.blocks_for(seq.num_tokens) - len(prefix) + len(self._roster.unforked(seq))
        taken = needed + pool.num_cached_of(prefix) + draft.reserved
        if wanted == 0 or (self._roster.running[draft.shard] and taken > pool.num_free):
            return None
        # Without the cached ones: each block that need not be computed again outweighs one block of load.
        return Offer(draft, prefix, wanted, load=pool.num_used + draft.reserved + needed)

    def _first_chunk(self, num_tokens: int, budget: int) -> int:
        """Without chunked prefill a prompt is computed whole or not yet. What a preempted sequence must
        recompute, its output included, may be more than any step holds: that is cut all the same."""
        fits_some_step = num_tokens <= self.config.max_num_batched_tokens
        if num_tokens > budget and fits_some_step and not self.config.enable_chunked_prefill:
            return 0
        return min(num_tokens, budget)

    def _start(self, seq: Sequence, offer: Offer) -> None:
        draft, pool = offer.draft, offer.draft.pool
        num_copies = len(self._roster.unforked(seq))
        self._roster.start(seq, draft.shard)
        pool.adopt(seq, offer.prefix)
        seq.num_computed_tokens = len(offer.prefix) * pool.block_size
        if seq.first_scheduled_time is None:
            seq.first_scheduled_time = time.monotonic()
            seq.num_cached_tokens = seq.num_computed_tokens
        granted = pool.allocate(seq, offer.num_tokens, draft.copies)
        assert granted, f"sequence {seq.seq_id} was admitted without room for its first chunk"
        draft.reserved += pool.blocks_for(seq.num_tokens) - len(seq.block_table) + num_copies
        draft.budget -= offer.num_tokens
        self._plan_row(seq, offer.num_tokens, draft)

    def _plan_row(self, seq: Sequence, num_tokens: int, draft: Draft) -> None:
        start, total = seq.num_computed_tokens, seq.num_tokens
        seq.num_computed_tokens = end = start + num_tokens
        sample = end == total < seq.max_num_tokens   # with max_tokens=0 a prompt ends unsampled
        seq.num_pending += sample
        rows = draft.decodes if num_tokens == 1 else draft.chunks
        rows.append(PlannedRow(seq.seq_id, seq.slot, start, num_tokens, sample))
        if end == total:
            for child in self._roster.fork(seq):
                self._inherit(seq, child)
                draft.forks.append((seq.seq_id, child.seq_id, child.slot))

    def _inherit(self, parent: Sequence, child: Sequence) -> None:
        self.pools[parent.shard].fork(parent, child)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_pending = parent.num_pending
        child.num_cached_tokens = parent.num_cached_tokens
        child.first_scheduled_time = parent.first_scheduled_time

    def _preempt_last(self, draft: Draft) -> Sequence:
        seq = self._roster.preempt_last(draft.shard)
        self._take_blocks(seq)
        seq.num_preemptions += 1
        self.num_preemptions += 1
        draft.preempted.append(seq.seq_id)
        return seq

    def _take_blocks(self, seq: Sequence) -> None:
        self.pools[seq.shard].free(seq)
        seq.num_computed_tokens = 0


def _num_uncomputed(seq: Sequence) -> int:
    """Tokens still to compute: none once the ids in flight reach the sequence's end (it waits to be read)."""
    num_tokens, num_computed = seq.num_tokens, seq.num_computed_tokens
    if num_tokens >= seq.max_num_tokens and num_computed >= seq.num_prompt_tokens:
        return 0
    return num_tokens - num_computed
