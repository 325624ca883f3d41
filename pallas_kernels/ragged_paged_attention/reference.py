"""The readable truth: gather every token's whole KV, mask, softmax in float32. Runs everywhere, fast nowhere."""

import jax
import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention.pool import write


def ragged_paged_attention(
    q, k, v, kv, metadata, *, scale, sliding_window=None, softcap=None, sinks=None, max_q_len=None
):
    """See api.ragged_paged_attention. `max_q_len` only helps faster back ends."""
    T, N, H = q.shape
    K = k.shape[1]
    kv = write(kv, k, v, metadata.slot_mapping)
    keys, values = read(kv, metadata.block_tables, H)                      # f32[B, S, K, H]

    seq, position = locate(metadata, T)
    key_position = jnp.arange(keys.shape[1])[None, :]
    visible = key_position <= position[:, None]                            # [T, S]
    if sliding_window is not None:
        visible &= key_position > position[:, None] - sliding_window

    grouped = q.reshape(T, K, N // K, H).astype(jnp.float32)
    scores = jnp.einsum("tkgh,tskh->tkgs", grouped, keys[seq], precision="highest") * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(visible[:, None, None, :], scores, -jnp.inf)
    if sinks is not None:
        extra = jnp.broadcast_to(sinks.reshape(1, K, N // K, 1).astype(jnp.float32), (T, K, N // K, 1))
        scores = jnp.concatenate([scores, extra], axis=-1)
    some = visible.any(-1)[:, None, None, None]
    weights = jax.nn.softmax(jnp.where(some, scores, 0.0), axis=-1)[..., : keys.shape[1]]
    weights = jnp.where(visible[:, None, None, :], weights, 0.0)
    seen = jnp.where(visible[:, :, None, None], values[seq], 0.0)          # 0 * NaN of an unused slot is NaN
    out = jnp.einsum("tkgs,tskh->tkgh", weights, seen, precision="highest")
    return out.reshape(T, N, H).astype(q.dtype), kv


def locate(metadata, num_tokens):
    """Sequence and position of each flat token, int32[T] both; a padding token has position -1: it sees nothing."""
    tokens = jnp.arange(num_tokens)
    num_seqs = metadata.kv_lens.shape[0]
    seq = jnp.minimum(jnp.searchsorted(metadata.cu_q_lens, tokens, side="right") - 1, num_seqs - 1)
    position = metadata.kv_lens[seq] - metadata.cu_q_lens[seq + 1] + tokens
    return seq, jnp.where(tokens < metadata.cu_q_lens[-1], position, -1)


def read(kv, block_tables, head_dim):
    """The blocks of each sequence as contiguous float32 keys and values [B, M * C, K, H]."""

    def get(pool, scales):
        P, K, CH = pool.shape
        B = block_tables.shape[0]
        rows = pool.reshape(P, K, CH // head_dim, head_dim)[block_tables].astype(jnp.float32)   # [B, M, K, C, H]
        if scales is not None:
            rows = rows * scales[block_tables][..., None]
        return rows.transpose(0, 1, 3, 2, 4).reshape(B, -1, K, head_dim)

    return get(kv.k, kv.k_scale), get(kv.v, kv.v_scale)
