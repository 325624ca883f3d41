"""Who is here: every unfinished sequence, its queue, its shard and its slot."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable

from jaxengine.scheduler.policies import OrderKey
from jaxengine.types import Request, Sequence, SequenceStatus


class Roster:
    """Sequences that wait for their turn, that wait for a sibling's prompt, or that run in a slot.

    `waiting`, and `running` of each shard, are kept in policy order, the first to serve first. Only the first
    of a request's n sequences queues; it takes slots for all n, and computes the prompt that the others then
    fork from. Shard s has the slots [s * num_slots, (s + 1) * num_slots).
    """

    def __init__(self, order: Callable[[Sequence], OrderKey], num_slots: int, num_shards: int = 1) -> None:
        self.order = order
        self.waiting: list[Sequence] = []
        self.running: tuple[list[Sequence], ...] = tuple([] for _ in range(num_shards))
        self.by_request: dict[str, list[Sequence]] = {}
        self._unforked: dict[int, list[Sequence]] = {}   # by the id of the sequence that prefills for them
        # One heap a shard: low slots first.
        self._free_slots = [list(range(shard * num_slots, (shard + 1) * num_slots)) for shard in range(num_shards)]
        self._next_seq_id = 0

    def add(self, request: Request, max_num_tokens: int) -> list[Sequence]:
        ids = range(self._next_seq_id, self._next_seq_id + request.params.n)
        self._next_seq_id = ids.stop
        seqs = [Sequence(id_, request, index=i, max_num_tokens=max_num_tokens) for i, id_ in enumerate(ids)]
        self.by_request[request.request_id] = list(seqs)
        if len(seqs) > 1:
            self._unforked[ids.start] = seqs[1:]
        insort(self.waiting, seqs[0], key=self.order)
        return seqs

    def unforked(self, seq: Sequence) -> list[Sequence]:
        """The siblings that wait for the prompt that `seq` is to compute."""
        return self._unforked.get(seq.seq_id, [])

    def has_slots_for(self, seq: Sequence, shard: int) -> bool:
        return 1 + len(self.unforked(seq)) <= len(self._free_slots[shard])

    def start(self, seq: Sequence, shard: int) -> None:
        """From the waiting to a slot of `shard`; the slots of unforked siblings are held from now on."""
        self.waiting.remove(seq)   # it is the first, or near it
        for member in (seq, *self.unforked(seq)):
            member.shard = shard
            member.slot = heapq.heappop(self._free_slots[shard])
        self._run(seq)

    def fork(self, seq: Sequence) -> list[Sequence]:
        """Lets the unforked siblings of `seq` run; returns them."""
        children = self._unforked.pop(seq.seq_id, [])
        for child in children:
            self._run(child)
        return children

    def preempt_last(self, shard: int) -> Sequence:
        seq = self.running[shard].pop()
        self._free_slots_of(seq, *self.unforked(seq))
        seq.status = SequenceStatus.WAITING
        insort(self.waiting, seq, key=self.order)
        return seq

    def remove(self, seq: Sequence) -> list[Sequence]:
        """Takes `seq` out for good, wherever it is, with the siblings that it leaves without a prompt."""
        if seq.status is SequenceStatus.RUNNING:
            self.running[seq.shard].remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        else:
            self._unforked[seq.seq_id - seq.index].remove(seq)
        removed = [seq, *self._unforked.pop(seq.seq_id, ())]
        self._free_slots_of(*removed)
        siblings = self.by_request[seq.request.request_id]
        for member in removed:
            member.status = SequenceStatus.FINISHED
            siblings.remove(member)
        if not siblings:
            del self.by_request[seq.request.request_id]
        return removed

    def check(self) -> None:
        """Asserts the invariants. For tests."""
        unforked = [seq for seqs in self._unforked.values() for seq in seqs]
        running = [seq for seqs in self.running for seq in seqs]
        held = [seq.slot for seq in (*running, *unforked) if seq.slot >= 0]
        slots = held + [slot for free in self._free_slots for slot in free]
        assert sorted(slots) == list(range(len(slots))), "a slot is lost"
        for shard, seqs in enumerate(self.running):
            assert all(seq.shard == shard for seq in seqs), "a sequence runs on another shard than its own"
        queues = [(self.waiting, SequenceStatus.WAITING), *((seqs, SequenceStatus.RUNNING) for seqs in self.running)]
        for queue, status in queues:
            assert queue == sorted(queue, key=self.order), "a queue is out of order"
            assert all(seq.status is status for seq in queue)
        everyone = {*running, *self.waiting, *unforked}
        assert everyone == {seq for seqs in self.by_request.values() for seq in seqs}, "a sequence is lost"

    def _run(self, seq: Sequence) -> None:
        seq.status = SequenceStatus.RUNNING
        insort(self.running[seq.shard], seq, key=self.order)

    def _free_slots_of(self, *seqs: Sequence) -> None:
        for seq in seqs:
            if seq.slot >= 0:
                heapq.heappush(self._free_slots[seq.shard], seq.slot)
                seq.slot = -1
