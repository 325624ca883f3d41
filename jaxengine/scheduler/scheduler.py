"""Continuous batching: which tokens of which sequences the next step computes.

The device runs one step ahead of what the host has read, so a plan may count on ids that are sampled but
not known yet (Sequence.num_pending). The caller's part, in this order for ever:

    plan = schedule(); dispatch it; read the results of the plan before it: `commit` each sampled id,
    `commit_computed` each row without a sample, and `finish` what has ended.

A sequence has ended at the latest when `len(token_ids) >= max_num_tokens`: FinishReason.LENGTH. Where
`schedule` returns None although `has_unfinished`, the results of an earlier plan are still to be read.
Results of a sequence that is meanwhile finished are ignored. One thread at a time.
"""

from __future__ import annotations

import heapq
import time
from bisect import insort
from dataclasses import dataclass, field

from jaxengine.config import SchedulerConfig
from jaxengine.scheduler.block_manager import BlockManager
from jaxengine.scheduler.limits import max_num_tokens
from jaxengine.scheduler.policies import POLICIES
from jaxengine.types import FinishReason, PlannedRow, Request, Sequence, SequenceStatus, StepPlan

ADMISSION_RESERVE = 0.01   # share of the pool kept free at admission, so that decodes may grow


@dataclass
class _Draft:
    """A StepPlan being made. `budget`: tokens left for chunks of prefill."""

    budget: int
    decodes: list[PlannedRow] = field(default_factory=list)   # rows of one token
    chunks: list[PlannedRow] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    forks: list[tuple[int, int, int]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)


class Scheduler:
    """Owns every unfinished sequence. Both queues are kept in policy order, the first to serve first."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager, max_model_len: int) -> None:
        if config.policy not in POLICIES:
            raise ValueError(f"policy={config.policy!r} is not known; known: {', '.join(POLICIES)}")
        self.config = config
        self.blocks = blocks
        self.max_model_len = max_model_len
        self.num_preemptions = 0
        self._order = POLICIES[config.policy]
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._by_request: dict[str, list[Sequence]] = {}     # unfinished sequences
        self._unforked: dict[int, list[Sequence]] = {}       # by the sequence that prefills for them
        self._free_slots = list(range(config.max_num_seqs))  # a heap: low slots first
        self._reserve = int(ADMISSION_RESERVE * blocks.num_blocks)
        self._next_seq_id = 0
        self._next_step_id = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self._by_request)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    def waste(self) -> float:
        """Allocated but unused KV slots over allocated ones, 0 to 1."""
        return self.blocks.waste(self._running)

    # --- arrival, results, end --------------------------------------------------------------------------

    def add(self, request: Request) -> list[Sequence]:
        """Queues a request; returns its n sequences. Raises ValueError for one that can never be served.

        Output ends at max_tokens, at max_model_len, or where one sequence fills the whole pool, whichever
        comes first (Sequence.max_num_tokens). The first sequence computes the prompt for all n. With
        max_tokens=0 nothing is sampled: finish it once the prompt's last row is read.
        """
        if request.request_id in self._by_request:
            raise ValueError(f"request_id={request.request_id!r} is in use; choose another one")
        limit = max_num_tokens(request, self.config, self.max_model_len, self.blocks.capacity)
        ids = range(self._next_seq_id, self._next_seq_id + request.params.n)
        self._next_seq_id = ids.stop
        seqs = [Sequence(id_, request, index=i, max_num_tokens=limit) for i, id_ in enumerate(ids)]
        self._by_request[request.request_id] = list(seqs)
        if len(seqs) > 1:
            self._unforked[ids.start] = seqs[1:]
        insort(self._waiting, seqs[0], key=self._order)
        return seqs

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
            self.blocks.register(seq, num_tokens)

    def finish(
        self, seq: Sequence, reason: FinishReason, stop_reason: int | str | None = None, register: bool = True
    ) -> None:
        """Ends a sequence in whatever state it is, and with it those of its request that wait for its prompt.

        register=False: its row failed, so nobody may reuse what it has computed.
        """
        if seq.is_finished:
            return
        if not register:
            self.blocks.forget(seq)
        if seq.status is SequenceStatus.RUNNING:
            self._release(seq)
        elif seq in self._waiting:
            self._waiting.remove(seq)
        else:
            self._leave_unforked(seq)
        for ended in (seq, *self._unforked.pop(seq.seq_id, ())):
            self._mark_finished(ended, reason, stop_reason)

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends a request at any moment; returns the sequences that this ended, none for an unknown id."""
        seqs = list(self._by_request.get(request_id, ()))
        for seq in seqs:
            self.finish(seq, FinishReason.ABORT)
        return seqs

    # --- planning ---------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plans the next step and advances the planned sequences. None: nothing can be computed now."""
        draft = _Draft(self.config.max_num_batched_tokens)
        self._plan_running(draft)
        if not draft.preempted:   # else the blocks of the preempted would at once go to them again
            self._admit(draft)
        if not draft.decodes and not draft.chunks:
            return None
        self._next_step_id += 1
        return StepPlan(
            step_id=self._next_step_id - 1,
            rows=(*draft.decodes, *draft.chunks),
            num_decodes=len(draft.decodes),
            copies=tuple(draft.copies),
            forks=tuple(draft.forks),
            preempted=tuple(draft.preempted),
        )

    def _plan_running(self, draft: _Draft) -> None:
        """Decodes first: their tokens are set aside before any chunk. Served in policy order, so that
        preemption, which takes the last, never hits a sequence that is already in the plan."""
        todo = [(seq, _num_uncomputed(seq)) for seq in self._running]
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

    def _grant(self, seq: Sequence, wanted: int, draft: _Draft) -> int:
        """Blocks for up to `wanted` tokens, for one at least: preempts others for it. 0: preempted `seq`."""
        while True:
            granted = 1 if wanted == 1 else min(wanted, max(1, self.blocks.room(seq)))
            if self.blocks.allocate(seq, granted, draft.copies):
                return granted
            if self._preempt_last(draft) is seq:
                return 0

    def _admit(self, draft: _Draft) -> None:
        """Admits in policy order. One that does not fit yet holds back all after it, or it might starve."""
        if not self._waiting:
            return
        size_of = self.blocks.blocks_for
        reserved = self._reserve + sum(size_of(s.num_tokens) - len(s.block_table) for s in self._running)
        while self._waiting and draft.budget > 0:
            seq = self._waiting[0]
            siblings = self._unforked.get(seq.seq_id, [])
            # A preempted sequence may have an id in flight: it cannot be recomputed before that is known.
            if seq.num_pending or 1 + len(siblings) > len(self._free_slots):
                return
            prefix = self.blocks.match(seq)
            wanted = self._first_chunk(seq.num_tokens - len(prefix) * self.blocks.block_size, draft.budget)
            # Counts the whole prompt, and a copied block for each sibling, though only a chunk is taken now.
            needed = size_of(seq.num_tokens) - len(prefix) + len(siblings)
            taken = needed + self.blocks.num_cached_of(prefix) + reserved
            if wanted == 0 or (self._running and taken > self.blocks.num_free):
                return
            del self._waiting[0]
            self._start(seq, siblings, prefix)
            granted = self.blocks.allocate(seq, wanted, draft.copies)
            assert granted, f"sequence {seq.seq_id} was admitted without room for its first chunk"
            reserved += size_of(seq.num_tokens) - len(seq.block_table) + len(siblings)
            draft.budget -= wanted
            self._plan_row(seq, wanted, draft)

    def _first_chunk(self, num_tokens: int, budget: int) -> int:
        """Without chunked prefill a prompt is computed whole or not yet. What a preempted sequence must
        recompute, its output included, may be more than any step holds: that is cut all the same."""
        fits_some_step = num_tokens <= self.config.max_num_batched_tokens
        if num_tokens > budget and fits_some_step and not self.config.enable_chunked_prefill:
            return 0
        return min(num_tokens, budget)

    def _start(self, seq: Sequence, siblings: list[Sequence], prefix: list[int]) -> None:
        for member in (seq, *siblings):   # the siblings' slots are held until they fork
            member.slot = heapq.heappop(self._free_slots)
        self.blocks.adopt(seq, prefix)
        seq.num_computed_tokens = len(prefix) * self.blocks.block_size
        if seq.first_scheduled_time is None:
            seq.first_scheduled_time = time.monotonic()
            seq.num_cached_tokens = seq.num_computed_tokens
        seq.status = SequenceStatus.RUNNING
        insort(self._running, seq, key=self._order)

    def _plan_row(self, seq: Sequence, num_tokens: int, draft: _Draft) -> None:
        start, total = seq.num_computed_tokens, seq.num_tokens
        seq.num_computed_tokens = end = start + num_tokens
        sample = end == total < seq.max_num_tokens   # with max_tokens=0 a prompt ends unsampled
        seq.num_pending += sample
        rows = draft.decodes if num_tokens == 1 else draft.chunks
        rows.append(PlannedRow(seq.seq_id, seq.slot, start, num_tokens, sample))
        if end == total and seq.seq_id in self._unforked:
            for child in self._unforked.pop(seq.seq_id):
                self._fork(seq, child)
                draft.forks.append((seq.seq_id, child.seq_id, child.slot))

    def _fork(self, parent: Sequence, child: Sequence) -> None:
        self.blocks.fork(parent, child)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_pending = parent.num_pending
        child.num_cached_tokens = parent.num_cached_tokens
        child.first_scheduled_time = parent.first_scheduled_time
        child.status = SequenceStatus.RUNNING
        insort(self._running, child, key=self._order)

    def _preempt_last(self, draft: _Draft) -> Sequence:
        seq = self._running[-1]
        self._release(seq)
        seq.status = SequenceStatus.WAITING
        seq.num_preemptions += 1
        self.num_preemptions += 1
        insort(self._waiting, seq, key=self._order)
        draft.preempted.append(seq.seq_id)
        return seq

    def _release(self, seq: Sequence) -> None:
        """Takes blocks and slots from a running sequence."""
        self._running.remove(seq)
        self.blocks.free(seq)
        seq.num_computed_tokens = 0
        for member in (seq, *self._unforked.get(seq.seq_id, ())):
            heapq.heappush(self._free_slots, member.slot)
            member.slot = -1

    def _leave_unforked(self, seq: Sequence) -> None:
        self._unforked[seq.seq_id - seq.index].remove(seq)
        if seq.slot >= 0:
            heapq.heappush(self._free_slots, seq.slot)
            seq.slot = -1

    def _mark_finished(self, seq: Sequence, reason: FinishReason, stop_reason: int | str | None) -> None:
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        seq.stop_reason = stop_reason
        siblings = self._by_request[seq.request.request_id]
        siblings.remove(seq)
        if not siblings:
            del self._by_request[seq.request.request_id]


def _num_uncomputed(seq: Sequence) -> int:
    """Tokens still to compute: none once the ids in flight reach the sequence's end (it waits to be read)."""
    num_tokens, num_computed = seq.num_tokens, seq.num_computed_tokens
    if num_tokens >= seq.max_num_tokens and num_computed >= seq.num_prompt_tokens:
        return 0
    return num_tokens - num_computed
