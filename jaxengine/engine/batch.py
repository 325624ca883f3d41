"""StepPlan -> StepBatch: one int32 vector per step, packed on the host, unpacked inside the compiled step.

One upload a step, fixed in size by the bucket, plain integers: what other processes would need to run
the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.arrays import StepBatch
from jaxengine.types import Sequence, StepPlan
from pallas_kernels.ragged_paged_attention import AttentionMetadata


@dataclass(frozen=True)
class BatchShape:
    """The static sizes of a step: T flat tokens, B sequences, M blocks a sequence, R rows that may be sampled."""

    num_tokens: int
    num_seqs: int
    blocks_per_seq: int
    num_rows: int
    max_q_len: int | None      # 1 in a decode step, None in a mixed one

    def fields(self) -> dict[str, tuple[int, ...]]:
        return {
            "token_ids": (self.num_tokens,),
            "positions": (self.num_tokens,),
            "slot_mapping": (self.num_tokens,),
            "block_tables": (self.num_seqs, self.blocks_per_seq),
            "kv_lens": (self.num_seqs,),
            "cu_q_lens": (self.num_seqs + 1,),
            "num_decodes": (1,),
            "rows": (self.num_rows,),
        }

    @property
    def packed_size(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.fields().values())

    def views(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        """Named views into one packed host vector int32[packed_size]."""
        return dict(self._split(packed))

    def _split(self, packed):
        start = 0
        for name, shape in self.fields().items():
            size = int(np.prod(shape))
            yield name, packed[start : start + size].reshape(shape)
            start += size


def unpack(packed: jax.Array, last_tokens: jax.Array, shape: BatchShape, backend: str) -> tuple[StepBatch, jax.Array]:
    """Inside the compiled step: packed int32[packed_size] -> (StepBatch, rows int32[R] into the flat tokens).

    A negative token id -1 - s means "what was last sampled in slot s": it has not left the device yet.
    """
    part = dict(shape._split(packed))
    ids = part["token_ids"]
    ids = jnp.where(ids < 0, last_tokens[jnp.maximum(-1 - ids, 0)], ids)
    attention = AttentionMetadata(
        part["slot_mapping"], part["block_tables"], part["kv_lens"], part["cu_q_lens"], part["num_decodes"][0]
    )
    return StepBatch(ids, part["positions"], attention, shape.max_q_len, backend), part["rows"]


@dataclass(frozen=True)
class SampleRow:
    """A sequence whose next token the step samples, and where its hidden state lies among the flat tokens."""

    seq: Sequence
    slot: int
    position: int      # of the token to be sampled
    token_index: int


class BatchBuilder:
    """Fills packed vectors. Keeps one block table row per slot, so a step copies only what changed."""

    def __init__(
        self, max_num_seqs: int, blocks_per_seq: int, block_size: int, find: Callable[[int], Sequence]
    ) -> None:
        self.block_size = block_size
        self._find = find
        self._tables = np.zeros((max_num_seqs, blocks_per_seq), np.int32)
        # Per slot: whose row it is, and how many of its blocks are known.
        self._synced: list[tuple[tuple[int, int], int]] = [((-1, 0), 0)] * max_num_seqs

    def build(self, plan: StepPlan, shape: BatchShape) -> tuple[np.ndarray, list[SampleRow]]:
        """The packed vector of a plan in a bucket, and its rows to sample in order (forked children included)."""
        packed = np.zeros(shape.packed_size, np.int32)    # fresh: the device may still read the previous one
        view = shape.views(packed)
        n = len(plan.rows)
        counts = [row.num_tokens for row in plan.rows]
        ends = list(accumulate(counts))
        view["cu_q_lens"][1 : n + 1] = ends
        view["cu_q_lens"][n + 1 :] = ends[-1]
        view["num_decodes"][0] = plan.num_decodes
        view["kv_lens"][:n] = [row.start + row.num_tokens for row in plan.rows]

        samples: list[SampleRow] = []
        forks = _forks_by_parent(plan)
        for i, row in enumerate(plan.rows):
            seq = self._find(row.seq_id)
            self._sync(row.slot, seq)
            if i >= plan.num_decodes:
                self._fill_chunk(view, ends[i] - counts[i], row, seq)
            if row.sample:
                end = row.start + row.num_tokens
                samples.append(SampleRow(seq, row.slot, end, ends[i] - 1))
                samples += [SampleRow(self._find(c), s, end, ends[i] - 1) for c, s in forks.get(row.seq_id, ())]
        self._fill_decodes(view, plan)
        view["block_tables"][:n] = self._tables[[row.slot for row in plan.rows]]
        view["rows"][: len(samples)] = [s.token_index for s in samples]
        return packed, samples

    def _fill_decodes(self, view: dict[str, np.ndarray], plan: StepPlan) -> None:
        d = plan.num_decodes
        if not d:
            return
        rows = plan.rows[:d]
        seqs = [self._find(row.seq_id) for row in rows]
        view["token_ids"][:d] = [
            seq.token_ids[row.start] if row.start < len(seq.token_ids) else -1 - row.slot
            for row, seq in zip(rows, seqs, strict=True)
        ]
        positions = np.array([row.start for row in rows], np.int32)
        view["positions"][:d] = positions
        blocks = self._tables[[row.slot for row in rows], positions // self.block_size]
        view["slot_mapping"][:d] = blocks * self.block_size + positions % self.block_size

    def _fill_chunk(self, view: dict[str, np.ndarray], at: int, row, seq: Sequence) -> None:
        end = at + row.num_tokens
        view["token_ids"][at:end] = seq.token_ids[row.start : row.start + row.num_tokens]
        positions = np.arange(row.start, row.start + row.num_tokens, dtype=np.int32)
        view["positions"][at:end] = positions
        blocks = self._tables[row.slot][positions // self.block_size]
        view["slot_mapping"][at:end] = blocks * self.block_size + positions % self.block_size

    def _sync(self, slot: int, seq: Sequence) -> None:
        tenant = (seq.seq_id, seq.num_preemptions)     # a preempted sequence comes back with other blocks
        before, known = self._synced[slot]
        table = self._tables[slot]
        if before != tenant:
            known = 0
            table[:] = 0
        start = max(known - 1, 0)      # copy on write may have replaced the last block
        count = len(seq.block_table)
        if count > start:
            table[start:count] = seq.block_table[start:]
        self._synced[slot] = (tenant, count)


def _forks_by_parent(plan: StepPlan) -> dict[int, list[tuple[int, int]]]:
    forks: dict[int, list[tuple[int, int]]] = {}
    for parent, child, slot in plan.forks:
        forks.setdefault(parent, []).append((child, slot))
    return forks
