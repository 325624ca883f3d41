"""The compiled functions of a step: forward (decode or mixed), head + sampler, scoring, block copies.

Forward and sampler are separate executables, so shapes add up instead of multiplying, and the host reads
the previous step's ids while the forward runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.arrays import KVPool
from jaxengine.engine import sampler
from jaxengine.engine.batch import BatchShape, unpack
from jaxengine.engine.ledger import CompileLedger, Key
from jaxengine.engine.sampling_batch import SampleInputs
from jaxengine.engine.sampling_rows import abstract_inputs
from sharding import spec

COPIES = 16          # block copies in one call
SCORE_ROWS = 64      # prompt positions scored in one call


@dataclass(frozen=True)
class StepBuckets:
    """The fixed sizes that steps are padded to."""

    decode: tuple[int, ...]      # sequences of a decode step
    mixed: tuple[int, ...]       # flat tokens of a mixed step
    greedy: tuple[int, ...]      # rows of the greedy head
    sample: tuple[int, ...]      # rows of the full sampler
    max_num_seqs: int
    blocks_per_seq: int
    max_tokens: int              # of one sequence: max_model_len rounded up to whole blocks

    @property
    def num_rows(self) -> int:
        """Hidden rows that a forward hands to the head."""
        return max(self.max_num_seqs, *self.greedy, *self.sample)

    def shape(self, kind: str, bucket: int) -> BatchShape:
        if kind == "decode":
            return BatchShape(bucket, bucket, self.blocks_per_seq, self.num_rows, max_q_len=1)
        return BatchShape(bucket, max(2, self.max_num_seqs), self.blocks_per_seq, self.num_rows, max_q_len=None)


class Steps:
    """Lists every executable in the ledger and knows its function; holds no request state."""

    def __init__(
        self, family: ModuleType, cfg: Any, mesh: Mesh, ledger: CompileLedger, buckets: StepBuckets, backend: str
    ) -> None:
        self.family, self.cfg, self.mesh = family, cfg, mesh
        self.ledger, self.buckets, self.backend = ledger, buckets, backend

    def plan_all(self, params: Any, pool: KVPool, state: sampler.SamplerState) -> None:
        """Plans from abstract arrays: the weights need not be there yet."""
        b, D, dtype = self.buckets, self.cfg.hidden_size, params.embed.dtype
        rows = self._replicated((b.num_rows, D), dtype)
        hidden = self._replicated((b.mixed[-1], D), dtype)
        # In the order they are first needed, which is the order they are compiled in.
        for kind, sizes in (("mixed", b.mixed), ("decode", b.decode)):
            for size in sizes:
                shape = b.shape(kind, size)
                packed = self._replicated((shape.packed_size,), jnp.int32)
                text = f"T={shape.num_tokens} B={shape.num_seqs} M={shape.blocks_per_seq}"
                self._plan(Key(kind, size), text, partial(self._forward, shape=shape), 1,
                           params, pool, state.last_tokens, packed)
        for r in b.greedy:
            self._plan(Key("greedy", r), f"R={r}", partial(self._greedy, num_rows=r), 2,
                       params, rows, state, self._replicated((r,), jnp.int32))
        for r in b.sample:
            inputs = jax.tree.map(lambda s: self._replicated(s.shape, s.dtype), abstract_inputs(r, self.cfg.vocab_size))
            self._plan(Key("sample", r), f"R={r}", partial(self._sample, num_rows=r), 2, params, rows, state, inputs)
        index = self._replicated((SCORE_ROWS,), jnp.int32)
        self._plan(Key("score"), f"R={SCORE_ROWS}", self._score, None, params, hidden, index, index)
        self._plan(Key("reset"), f"tokens={b.max_tokens}", sampler.reset_slot, 0, state,
                   self._replicated((3,), jnp.int32), self._replicated((b.max_tokens,), jnp.int32))
        pairs = self._replicated((COPIES,), jnp.int32)
        self._plan(Key("copy"), f"blocks={COPIES}", copy_blocks, 0, pool, pairs, pairs)

    def _replicated(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, PartitionSpec()))

    def _plan(self, key: Key, shapes: str, f: Callable, donate: int | None, *args: Any) -> None:
        def lower() -> Any:
            with jax.set_mesh(self.mesh):
                return jax.jit(f, donate_argnums=() if donate is None else donate).lower(*args)
        self.ledger.plan(key, shapes, lower)

    # The functions below are traced.

    def _forward(self, params, pool, last_tokens, packed, *, shape: BatchShape):
        """-> (pool, rows [R, D] to sample from, hidden states [T_max, D] of a mixed step for scoring)."""
        batch, rows = unpack(packed, last_tokens, shape, self.backend)
        hidden, pool = self.family.forward(params, batch, pool, self.cfg)
        picked = hidden.at[rows].get(out_sharding=spec("tokens", "embed"))
        if shape.max_q_len is not None:
            return pool, picked, None
        return pool, picked, jnp.pad(hidden, ((0, self.buckets.mixed[-1] - hidden.shape[0]), (0, 0)))

    def _greedy(self, params, rows, state, slots, *, num_rows: int):
        logits = self.family.compute_logits(params, rows[:num_rows], self.cfg)
        return sampler.greedy(logits, state, slots)

    def _sample(self, params, rows, state, inputs: SampleInputs, *, num_rows: int):
        logits = self.family.compute_logits(params, rows[:num_rows], self.cfg)
        return sampler.sample(logits, state, inputs)

    def _score(self, params, hidden, index, targets):
        rows = hidden.at[index].get(out_sharding=spec("tokens", "embed"))
        return sampler.score(self.family.compute_logits(params, rows, self.cfg), targets)


def copy_blocks(pool: KVPool, sources: jax.Array, destinations: jax.Array) -> KVPool:
    """Copies whole blocks within the pool, all layers: copy on write. Unused pairs copy block 0 to itself."""
    def copy(x: jax.Array) -> jax.Array:
        sharding = spec("blocks", "kv_heads", None)
        return x.at[destinations].set(x.at[sources].get(out_sharding=sharding), out_sharding=sharding)
    return jax.tree.map(copy, pool)
