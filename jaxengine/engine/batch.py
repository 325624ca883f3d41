"""StepPlan -> StepBatch: one int32 vector per step, packed on the host, unpacked inside the compiled step.

One upload a step, fixed in size by the bucket, plain integers: what other processes would need to run
the same step. Under data parallelism the vector is one part a shard, each going to its own devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.arrays import StepBatch
from jaxengine.types import Sequence, ShardPlan, StepPlan
from pallas_kernels.ragged_paged_attention import AttentionMetadata
from sharding import spec


@dataclass(frozen=True)
class BatchShape:
    """The static sizes of a shard's step: T flat tokens, B sequences, M blocks a sequence, R rows to sample."""

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
        return sum(math.prod(shape) for shape in self.fields().values())

    def views(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        """Named views into one packed host vector int32[packed_size]."""
        return dict(self._split(packed))

    def _split(self, packed):
        start = 0
        for name, shape in self.fields().items():
            size = math.prod(shape)
            yield name, packed[start : start + size].reshape(shape)
            start += size


def unpack(packed: jax.Array, last_tokens: jax.Array, shape: BatchShape, backend: str) -> tuple[StepBatch, jax.Array]:
    """Inside the compiled step: packed int32[shards * packed_size] -> (StepBatch, rows int32[shards * R], which
    index the flat tokens of their shard).

    A negative token id -1 - s means "what was last sampled in the shard's slot s": it has not left the device yet.
    """
    def local(packed: jax.Array, last_tokens: jax.Array) -> tuple[StepBatch, jax.Array]:
        part = dict(shape._split(packed))
        ids = part["token_ids"]
        ids = jnp.where(ids < 0, last_tokens[jnp.maximum(-1 - ids, 0)], ids)
        attention = AttentionMetadata(
            part["slot_mapping"], part["block_tables"], part["kv_lens"], part["cu_q_lens"], part["num_decodes"]
        )
        return StepBatch(ids, part["positions"], attention, shape.max_q_len, backend), part["rows"]

    return jax.shard_map(
        local, in_specs=(spec("shards"), spec("slots")), out_specs=spec("tokens"), check_vma=False
    )(packed, last_tokens)


class SampleRow(NamedTuple):      # a tuple, because every step makes one per sequence
    """A sequence whose next token the step samples, and where its hidden state lies among its shard's tokens."""

    seq: Sequence
    slot: int
    position: int      # of the token to be sampled
    token_index: int


class BatchBuilder:
    """Fills packed vectors. Keeps one block table row per slot, so a step copies only what changed."""

    def __init__(
        self, max_num_seqs: int, blocks_per_seq: int, block_size: int, find: Callable[[int], Sequence],
        num_shards: int = 1,
    ) -> None:
        self.block_size = block_size
        self._slots_per_shard = max_num_seqs
        self._find = find
        slots = max_num_seqs * num_shards
        self._tables = np.zeros((slots, blocks_per_seq), np.int32)
        # Per slot: whose row it is, in which of its lives (a preempted sequence comes back with other blocks),
        # and how many of its blocks are known.
        self._tenants: list[Sequence | None] = [None] * slots
        self._lives = [0] * slots
        self._known = [0] * slots

    def build(self, plan: StepPlan, shape: BatchShape) -> tuple[np.ndarray, list[list[SampleRow]]]:
        """The packed vector of a plan in a bucket, and each shard's rows to sample in order (forked children
        included)."""
        size = shape.packed_size
        packed = np.zeros(len(plan.shards) * size, np.int32)    # fresh: the device may still read the previous one
        samples = [
            self._build_shard(shard, shape.views(packed[i * size : (i + 1) * size])) if shard.rows else []
            for i, shard in enumerate(plan.shards)
        ]
        return packed, samples

    def _build_shard(self, plan: ShardPlan, view: dict[str, np.ndarray]) -> list[SampleRow]:
        n, d = len(plan.rows), plan.num_decodes
        slots, starts, counts = (np.array(column, np.int32) for column in list(zip(*plan.rows, strict=True))[1:4])
        ends = counts.cumsum()
        view["cu_q_lens"][1 : n + 1] = ends
        view["cu_q_lens"][n + 1 :] = ends[-1]
        view["num_decodes"][0] = d
        view["kv_lens"][:n] = starts + counts
        seqs = [self._find(row.seq_id) for row in plan.rows]
        self._sync_tables(plan, seqs)
        view["block_tables"][:n] = self._tables[slots]
        if d:
            self._fill_decodes(view, plan, seqs, slots[:d], starts[:d])
        for row, seq, end in zip(plan.rows[d:], seqs[d:], ends[d:].tolist(), strict=True):
            self._fill_chunk(view, end - row.num_tokens, row, seq)
        samples = self._samples(plan, seqs, ends.tolist())
        view["rows"][: len(samples)] = [sample.token_index for sample in samples]
        return samples

    def _samples(self, plan: ShardPlan, seqs: list[Sequence], ends: list[int]) -> list[SampleRow]:
        forks = _forks_by_parent(plan)
        samples: list[SampleRow] = []
        for (seq_id, slot, start, num_tokens, sample), seq, end in zip(plan.rows, seqs, ends, strict=True):
            if sample:
                samples.append(SampleRow(seq, slot, start + num_tokens, end - 1))
                for child, child_slot in forks.get(seq_id, ()) if forks else ():
                    samples.append(SampleRow(self._find(child), child_slot, start + num_tokens, end - 1))
        return samples

    def _fill_decodes(
        self, view: dict[str, np.ndarray], plan: ShardPlan, seqs: list[Sequence], slots: np.ndarray, starts: np.ndarray
    ) -> None:
        d, slots_per_shard = plan.num_decodes, self._slots_per_shard
        view["token_ids"][:d] = [
            seq.token_ids[row.start] if row.start < len(seq.token_ids) else -1 - row.slot % slots_per_shard
            for row, seq in zip(plan.rows[:d], seqs, strict=False)
        ]
        view["positions"][:d] = starts
        blocks = self._tables[slots, starts // self.block_size]
        view["slot_mapping"][:d] = blocks * self.block_size + starts % self.block_size

    def _fill_chunk(self, view: dict[str, np.ndarray], at: int, row, seq: Sequence) -> None:
        end = at + row.num_tokens
        view["token_ids"][at:end] = seq.token_ids[row.start : row.start + row.num_tokens]
        positions = np.arange(row.start, row.start + row.num_tokens, dtype=np.int32)
        view["positions"][at:end] = positions
        blocks = self._tables[row.slot][positions // self.block_size]
        view["slot_mapping"][at:end] = blocks * self.block_size + positions % self.block_size

    def _sync_tables(self, plan: ShardPlan, seqs: list[Sequence]) -> None:
        tenants, lives, known = self._tenants, self._lives, self._known
        for row, seq in zip(plan.rows, seqs, strict=True):
            slot, count = row.slot, len(seq.block_table)
            if tenants[slot] is not seq or lives[slot] != seq.num_preemptions:
                tenants[slot], lives[slot], known[slot] = seq, seq.num_preemptions, 0
                self._tables[slot] = 0
            elif count == known[slot] and not plan.copies:
                continue
            first = max(known[slot] - 1, 0)      # copy on write may have replaced the last block
            if count > first:
                self._tables[slot, first:count] = seq.block_table[first:]
            known[slot] = count


def _forks_by_parent(plan: ShardPlan) -> dict[int, list[tuple[int, int]]]:
    forks: dict[int, list[tuple[int, int]]] = {}
    for parent, child, slot in plan.forks:
        forks.setdefault(parent, []).append((child, slot))
    return forks
