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
from jax.sharding import Mesh, NamedSharding

from jaxengine.arrays import KVPool
from jaxengine.engine import sampler
from jaxengine.engine.batch import BatchShape, unpack
from jaxengine.engine.ledger import CompileLedger, Key
from jaxengine.engine.sampling_batch import SampleInputs
from jaxengine.engine.sampling_rows import abstract_inputs
from sharding import DATA, spec

COPIES = 16          # block copies in one call
SCORE_ROWS = 64      # prompt positions scored in one call, or a few more


@dataclass(frozen=True)
class StepBuckets:
    """The fixed sizes that each shard's part of a step is padded to."""

    decode: tuple[int, ...]      # sequences of a decode step
    mixed: tuple[int, ...]       # flat tokens of a mixed step
    greedy: tuple[int, ...]      # rows of the greedy head
    sample: tuple[int, ...]      # rows of the full sampler
    max_num_seqs: int
    blocks_per_seq: int
    max_tokens: int              # of one sequence: max_model_len rounded up to whole blocks
    score: int = SCORE_ROWS      # rows scored in one call

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
        b, D, dtype, array = self.buckets, self.cfg.hidden_size, params.embed.dtype, self._array
        shards = self.mesh.shape[DATA]
        rows = array((shards * b.num_rows, D), dtype, "tokens")
        hidden = array((shards * b.mixed[-1], D), dtype, "tokens")
        # In the order they are first needed, which is the order they are compiled in.
        for kind, sizes in (("mixed", b.mixed), ("decode", b.decode)):
            for size in sizes:
                shape = b.shape(kind, size)
                packed = array((shards * shape.packed_size,), jnp.int32, "shards")
                text = f"T={shape.num_tokens} B={shape.num_seqs} M={shape.blocks_per_seq}"
                self._plan(Key(kind, size), text, partial(self._forward, shape=shape), 1,
                           params, pool, state.last_tokens, packed)
        for r in b.greedy:
            self._plan(Key("greedy", r), f"R={r}", partial(self._greedy, num_rows=r), 2,
                       params, rows, state, array((shards * r,), jnp.int32, "tokens"))
        for r in b.sample:
            inputs = jax.tree.map(
                lambda s: array(s.shape, s.dtype, "sampled"), abstract_inputs(shards * r, self.cfg.vocab_size)
            )
            self._plan(Key("sample", r), f"R={r}", partial(self._sample, num_rows=r), 2, params, rows, state, inputs)
        index, targets = (array((shards * b.score,), jnp.int32, axis) for axis in ("tokens", "sampled"))
        self._plan(Key("score"), f"R={b.score}", self._score, None, params, hidden, index, targets)
        self._plan(Key("reset"), f"tokens={b.max_tokens}", sampler.reset_slot, 0, state,
                   array((4,), jnp.int32), array((b.max_tokens,), jnp.int32))
        pairs = array((shards * COPIES,), jnp.int32, "shards")
        self._plan(Key("copy"), f"blocks={COPIES}", copy_blocks, 0, pool, pairs, pairs)

    def _array(self, shape: tuple[int, ...], dtype: Any, *axes: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec(*axes)))

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
        picked = take_rows(hidden, rows)
        if shape.max_q_len is not None:
            return pool, picked, None
        missing = self.buckets.mixed[-1] - shape.num_tokens
        return pool, picked, by_shard(lambda hidden: jnp.pad(hidden, ((0, missing), (0, 0))), hidden)

    def _greedy(self, params, rows, state, slots, *, num_rows: int):
        logits = self._logits(params, rows, num_rows)
        return sampler.greedy(logits, state, slots)

    def _sample(self, params, rows, state, inputs: SampleInputs, *, num_rows: int):
        logits = self._logits(params, rows, num_rows)
        return sampler.sample(logits, state, inputs)

    def _logits(self, params, rows, num_rows: int):
        """Of the first `num_rows` of each shard's rows."""
        return self.family.compute_logits(params, by_shard(lambda rows: rows[:num_rows], rows), self.cfg)

    def _score(self, params, hidden, index, targets):
        return sampler.score(self.family.compute_logits(params, take_rows(hidden, index), self.cfg), targets)


def by_shard(f: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """f on each shard's part of arrays whose first axis is the tokens, without communication."""
    return jax.shard_map(f, in_specs=spec("tokens"), out_specs=spec("tokens"), check_vma=False)(*arrays)


def take_rows(hidden: jax.Array, index: jax.Array) -> jax.Array:
    """hidden [shards * T, D] at int32[shards * R], each shard's index into its own part -> [shards * R, D]."""
    return by_shard(lambda hidden, index: hidden.at[index].get(), hidden, index)


def copy_blocks(pool: KVPool, sources: jax.Array, destinations: jax.Array) -> KVPool:
    """Copies whole blocks within each shard's pool, all layers: copy on write. Unused pairs copy block 0 to itself."""
    def local(pool: KVPool, sources: jax.Array, destinations: jax.Array) -> KVPool:
        return jax.tree.map(lambda x: x.at[destinations].set(x.at[sources].get()), pool)

    blocks, pairs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, pool), spec("shards")
    return jax.shard_map(local, in_specs=(blocks, pairs, pairs), out_specs=blocks, check_vma=False)(
        pool, sources, destinations
    )
