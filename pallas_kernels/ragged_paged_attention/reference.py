"""The readable truth: gather every token's whole KV, mask, softmax in float32. Runs everywhere, fast nowhere."""

import dataclasses

import jax
import jax.numpy as jnp


def ragged_paged_attention(q, k, v, kv, metadata, *, scale, sliding_window=None, softcap=None, sinks=None):
    """See api.ragged_paged_attention."""
    T, N, H = q.shape
    K = k.shape[1]
    kv = write(kv, k, v, metadata.slot_mapping)
    keys, values = read(kv, metadata.block_tables, H)                      # f32[B, S, K, H]

    tokens = jnp.arange(T)
    B = metadata.kv_lens.shape[0]
    seq = jnp.clip(jnp.searchsorted(metadata.cu_q_lens, tokens, side="right") - 1, 0, B - 1)
    position = metadata.kv_lens[seq] - metadata.cu_q_lens[seq + 1] + tokens   # of each query in its sequence
    key_position = jnp.arange(keys.shape[1])
    visible = key_position[None, :] <= position[:, None]
    visible &= key_position[None, :] < metadata.kv_lens[seq][:, None]
    if sliding_window is not None:
        visible &= key_position[None, :] > position[:, None] - sliding_window

    grouped = q.reshape(T, K, N // K, H).astype(jnp.float32)
    scores = jnp.einsum("tkgh,tskh->tkgs", grouped, keys[seq], precision="highest") * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(visible[:, None, None, :], scores, -jnp.inf)
    if sinks is not None:
        extra = jnp.broadcast_to(sinks.reshape(1, K, N // K, 1).astype(jnp.float32), (T, K, N // K, 1))
        scores = jnp.concatenate([scores, extra], axis=-1)
    # A padding token sees nothing: keep its row finite.
    weights = jax.nn.softmax(jnp.where(visible.any(-1)[:, None, None, None], scores, 0.0), axis=-1)
    weights = weights[..., : keys.shape[1]]
    weights = jnp.where(visible[:, None, None, :], weights, 0.0)
    seen = jnp.where(visible.any(0)[None, :, None, None], values, 0.0)     # never 0 * NaN from an unused slot
    out = jnp.einsum("tkgs,tskh->tkgh", weights, seen[seq], precision="highest")
    return out.reshape(T, N, H).astype(q.dtype), kv


def write(kv, k, v, slot_mapping):
    """Scatters new keys and values [T, K, H] into their slots, quantising them where the pool is quantised."""
    K, H = k.shape[1:]
    C = kv.k.shape[2] // H
    block, offset = slot_mapping // C, slot_mapping % C

    def put(pool, scales, new):
        scale = None
        if scales is not None:
            new, scale = quantize(new, pool.dtype)
            scales = scales.at[block, :, offset].set(scale)
        rows = pool.reshape(pool.shape[0], K, C, H).at[block, :, offset, :].set(new.astype(pool.dtype))
        return rows.reshape(pool.shape), scales

    new_k, k_scale = put(kv.k, kv.k_scale, k)
    new_v, v_scale = put(kv.v, kv.v_scale, v)
    return dataclasses.replace(kv, k=new_k, v=new_v, k_scale=k_scale, v_scale=v_scale)


def read(kv, block_tables, head_dim):
    """The blocks of each sequence as contiguous float32 keys and values [B, M * C, K, H]."""

    def get(pool, scales):
        P, K, CH = pool.shape
        B, M = block_tables.shape
        rows = pool.reshape(P, K, CH // head_dim, head_dim)[block_tables].astype(jnp.float32)   # [B, M, K, C, H]
        if scales is not None:
            rows = rows * scales[block_tables][..., None]
        return rows.transpose(0, 1, 3, 2, 4).reshape(B, -1, K, head_dim)

    return get(kv.k, kv.k_scale), get(kv.v, kv.v_scale)


def quantize(x, dtype):
    """x [T, K, H] -> (values in dtype, f32 scales [T, K]) with one scale per token and head."""
    limit = float(jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype).max)
    x = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=-1), 1e-12) / limit
    scaled = x / scale[..., None]
    return (jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled).astype(dtype), scale
