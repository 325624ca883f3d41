"""Attention of a step's tokens over the paged KV pool, each device on its own heads."""

from dataclasses import replace
from functools import partial

import jax

from jaxengine.arrays import StepBatch
from jaxengine.layers.linear import linear
from pallas_kernels.ragged_paged_attention import AttentionMetadata, KVLayer, ragged_paged_attention
from sharding import spec

Q_AXES = ("tokens", "kv_heads", "q_group", "head")
KV_AXES = ("tokens", "kv_heads", "head")


def project_qkv(
    x: jax.Array,                    # [T, D]
    wq: jax.Array,                   # [K, G, H, D]
    wkv: jax.Array,                  # [2, K, H, D]
    bq: jax.Array | None = None,     # [K, G, H]
    bkv: jax.Array | None = None,    # [2, K, H]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [T, K, G, H], k [T, K, H], v [T, K, H]."""
    q = linear(x, wq, Q_AXES)
    kv = linear(x, wkv, ("tokens", None, "kv_heads", "head"))
    if bq is not None:
        q = q + bq[None]
    if bkv is not None:
        kv = kv + bkv[None]
    return q, kv[:, 0], kv[:, 1]


def project_out(out: jax.Array, wo: jax.Array) -> jax.Array:
    """out [T, K, G, H], wo [D, K, G, H] -> [T, D]."""
    return linear(out, wo, ("tokens", "embed"))


def paged_attention(
    q: jax.Array,            # [T, K, G, H]
    k: jax.Array,            # [T, K, H]
    v: jax.Array,            # [T, K, H]
    kv: KVLayer,
    batch: StepBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,   # f32[K, G]
) -> tuple[jax.Array, KVLayer]:
    """Writes k and v into the pool and attends; returns (out [T, K, G, H], updated kv).

    Kernels see one shard's sequences and one device's heads only, so they run in a fully manual shard_map,
    without any communication.
    """
    kernel = partial(
        ragged_paged_attention, scale=scale, sliding_window=sliding_window, softcap=softcap,
        max_q_len=batch.max_q_len, backend=batch.attention_backend,
    )

    def local(q, k, v, kv, metadata, sinks):
        T, K, G, H = q.shape
        metadata = replace(metadata, num_decodes=metadata.num_decodes.reshape(()))
        out, kv = kernel(q.reshape(T, K * G, H), k, v, kv, metadata,
                         sinks=None if sinks is None else sinks.reshape(K * G))
        return out.reshape(T, K, G, H), kv

    kv_specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, kv)      # the layout is the back end's
    tokens = spec("tokens")
    metadata_specs = AttentionMetadata(*(tokens,) * 4, num_decodes=spec("shards"))  # type: ignore[arg-type]
    return jax.shard_map(
        local,
        in_specs=(spec(*Q_AXES), spec(*KV_AXES), spec(*KV_AXES), kv_specs, metadata_specs, spec("kv_heads", "q_group")),
        out_specs=(spec(*Q_AXES), kv_specs),
        check_vma=False,
    )(q, k, v, kv, batch.attention, sinks)
