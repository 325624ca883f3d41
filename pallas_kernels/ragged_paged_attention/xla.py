"""The fast form in plain XLA, made for CPUs; correct everywhere.

The KV length is dynamic: loops over chunks of the KV cache stop at the longest sequence that is there, so
one executable serves every length and work follows the tokens in use, not the width of the block table. Each
chunk is gathered as rows (one block of one KV head) and folded into an online softmax (Milakov and
Gimelshein, 2018; FlashAttention, Dao et al., 2022).

Legend: R sequences attended together · Q queries of one KV head in a sequence (G heads times tokens) · S
tokens in a chunk; the others as in api.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_paged_attention.pool import KVLayer, write

KV_CHUNK = 128          # tokens of a sequence gathered at once
MANY_SEQS = 16          # sequences attended together from which half a chunk is better: less past their ends
Q_TILE = 64             # prefill queries of one sequence attended together
DECODE_GROUP = 16       # decoding sequences of a mixed batch attended together
WIDE_QUERIES = 32       # queries of one KV head from which float32 dots pay
LOWEST = -1e30          # a running maximum before any score; finite, so that exp(-inf - it) is 0


class Scoring(NamedTuple):
    """What turns q.k into a score."""

    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: jax.Array | None      # f32[N]


def ragged_paged_attention(
    q, k, v, kv, metadata, *, scale, sliding_window=None, softcap=None, sinks=None, max_q_len=None
):
    """See api.ragged_paged_attention."""
    kv = write(kv, k, v, metadata.slot_mapping)
    scoring = Scoring(scale, sliding_window, softcap, sinks)
    if max_q_len is not None:
        return _uniform(q, kv, metadata, max_q_len, scoring), kv
    return _mixed(q, kv, metadata, scoring), kv


def _chunked(tables: jax.Array, block_size: int, num_seqs: int) -> jax.Array:
    """Block tables [B, M] -> [B, chunks, blocks of a chunk] for `num_seqs` sequences attended together.

    Padded to whole chunks: a dynamic slice past the end would be moved, not cut.
    """
    tokens = KV_CHUNK if num_seqs < MANY_SEQS else KV_CHUNK // 2
    blocks = min(max(1, tokens // block_size), tables.shape[1])
    return jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % blocks))).reshape(tables.shape[0], -1, blocks)


def _uniform(q, kv, metadata, num_q, scoring):
    """Every sequence has num_q queries: q [B * num_q, N, H] -> the same shape."""
    B = metadata.kv_lens.shape[0]
    tables = _chunked(metadata.block_tables, kv.k.shape[2] // q.shape[2], B)
    positions = metadata.kv_lens[:, None] - num_q + jnp.arange(num_q)[None, :]
    out = _attend(q.reshape(B, num_q, *q.shape[1:]), kv, tables, positions, scoring)
    return out.reshape(q.shape)


def _mixed(q, kv, metadata, scoring):
    """Decodes in groups, then prefill tiles, each by a loop that runs as often as there is work."""
    T = q.shape[0]
    span = max(Q_TILE, DECODE_GROUP)
    q = jnp.pad(q, ((0, span), (0, 0), (0, 0)))          # so that no slice at the end is moved
    out = jnp.zeros_like(q)
    out = _decode_groups(q, out, kv, metadata, scoring)
    out = _prefill_tiles(q, out, kv, metadata, scoring)
    return out[:T]


def _decode_groups(q, out, kv, metadata, scoring):
    """Attends the first num_decodes sequences, whose queries are the first flat tokens."""
    tables = _chunked(metadata.block_tables, kv.k.shape[2] // q.shape[2], DECODE_GROUP)
    tables = jnp.pad(tables, ((0, DECODE_GROUP), (0, 0), (0, 0)))
    kv_lens = jnp.pad(metadata.kv_lens, (0, DECODE_GROUP))

    def group(i, out):
        start = i * DECODE_GROUP
        rows = start + jnp.arange(DECODE_GROUP)
        lens = lax.dynamic_slice_in_dim(kv_lens, start, DECODE_GROUP)
        positions = jnp.where(rows < metadata.num_decodes, lens - 1, -1)
        result = _attend(
            lax.dynamic_slice_in_dim(q, start, DECODE_GROUP)[:, None],
            kv, lax.dynamic_slice_in_dim(tables, start, DECODE_GROUP), positions[:, None], scoring,
        )
        return lax.dynamic_update_slice_in_dim(out, result[:, 0], start, 0)

    return lax.fori_loop(0, _ceil_div(metadata.num_decodes, DECODE_GROUP), group, out)


def _prefill_tiles(q, out, kv, metadata, scoring):
    """Attends the sequences from num_decodes on, Q_TILE queries of one sequence at a time.

    A sequence's last tile runs over into what follows it. Tiles go in ascending order, so the next one
    overwrites that.
    """
    cu, kv_lens = metadata.cu_q_lens, metadata.kv_lens
    tables = _chunked(metadata.block_tables, kv.k.shape[2] // q.shape[2], 1)
    prefills = jnp.arange(kv_lens.shape[0]) >= metadata.num_decodes
    tiles = jnp.where(prefills, _ceil_div(cu[1:] - cu[:-1], Q_TILE), 0)
    ends = jnp.cumsum(tiles)

    def tile(i, out):
        seq = jnp.searchsorted(ends, i, side="right")
        start = cu[seq] + (i - ends[seq] + tiles[seq]) * Q_TILE
        tokens = start + jnp.arange(Q_TILE)
        positions = jnp.where(tokens < cu[seq + 1], kv_lens[seq] - cu[seq + 1] + tokens, -1)
        result = _attend(
            lax.dynamic_slice_in_dim(q, start, Q_TILE)[None],
            kv, lax.dynamic_slice_in_dim(tables, seq, 1), positions[None], scoring,
        )
        return lax.dynamic_update_slice_in_dim(out, result[0], start, 0)

    return lax.fori_loop(0, ends[-1], tile, out)


def _attend(
    q: jax.Array,              # [R, t, N, H]
    kv: KVLayer,
    tables: jax.Array,         # int32[R, chunks, blocks of a chunk]
    positions: jax.Array,      # int32[R, t] of each query in its sequence; negative: it sees nothing
    scoring: Scoring,
) -> jax.Array:
    """Each sequence's queries over its own blocks -> [R, t, N, H]; zeros for a query that sees nothing."""
    R, t, N, H = q.shape
    K = kv.k.shape[1]
    Q = t * N // K
    S = tables.shape[2] * kv.k.shape[2] // H
    dtype = _dot_dtype(q, kv, Q)
    packed = q.reshape(R, t, K, N // K, H).transpose(0, 2, 3, 1, 4).reshape(R, K, Q, H).astype(dtype)
    packed_positions = jnp.broadcast_to(positions[:, None, :], (R, N // K, t)).reshape(R, 1, Q, 1)

    def fold(i, state):
        highest, total, acc = state
        blocks = lax.dynamic_index_in_dim(tables, i, axis=1, keepdims=False)
        keys, values, k_scale, v_scale = _gather(kv, blocks, H, dtype)
        key_positions = (i * S + jnp.arange(S)).reshape(1, 1, 1, S)
        visible = _visible(key_positions, packed_positions, scoring.sliding_window)
        scores = jnp.einsum("rkqh,rksh->rkqs", packed, keys, preferred_element_type=jnp.float32)
        scores = _score(scores, k_scale, visible, scoring)
        new_highest = jnp.maximum(highest, scores.max(-1))
        weights = jnp.exp(scores - new_highest[..., None])
        decay = jnp.exp(highest - new_highest)
        total = total * decay + weights.sum(-1)
        if v_scale is not None:
            weights = jnp.where(visible, weights * v_scale, 0.0)
        acc = acc * decay[..., None] + _weighted_sum(weights.astype(dtype), values, visible)
        return new_highest, total, acc

    first, last = _chunk_range(positions, S, scoring.sliding_window)
    _, total, acc = lax.fori_loop(first, last, fold, _start(scoring.sinks, R, K, t, N // K, H))
    total = jnp.where(total > 0, total, 1.0)[..., None]
    out = jnp.where(packed_positions >= 0, acc / total, 0.0).astype(q.dtype)
    return out.reshape(R, K, N // K, t, H).transpose(0, 3, 1, 2, 4).reshape(R, t, N, H)


def _dot_dtype(q: jax.Array, kv: KVLayer, Q: int) -> Any:
    """The dtype of the dots, which accumulate in float32 in any case.

    Few queries a key: memory decides, so keys stay as they are stored. Many: widening each key once is cheap,
    and float32 dots are the fastest on CPUs without bf16 instructions, and more exact.
    """
    if Q >= WIDE_QUERIES:
        return jnp.float32
    return jnp.promote_types(q.dtype, kv.k.dtype) if kv.k_scale is None else q.dtype


def _start(sinks, R, K, t, G, H):
    """The online softmax before any key: a sink is a key that was seen already and has no value."""
    shape = (R, K, G * t)
    if sinks is None:
        highest, total = jnp.full(shape, LOWEST, jnp.float32), jnp.zeros(shape, jnp.float32)
    else:
        sinks = jnp.maximum(sinks.astype(jnp.float32), LOWEST).reshape(1, K, G, 1)
        highest = jnp.broadcast_to(sinks, (R, K, G, t)).reshape(shape)
        total = jnp.ones(shape, jnp.float32)
    return highest, total, jnp.zeros((*shape, H), jnp.float32)


def _chunk_range(positions, S, sliding_window):
    """The chunks [first, last) of S tokens that any query sees."""
    last = _ceil_div(positions.max() + 1, S)
    if sliding_window is None:
        return jnp.zeros_like(last), last
    lowest = jnp.where(positions >= 0, positions, jnp.iinfo(jnp.int32).max).min()
    return jnp.clip((lowest - sliding_window + 1) // S, 0, last), last


def _gather(kv: KVLayer, blocks: jax.Array, H: int, dtype: Any):
    """blocks int32[R, m] -> keys and values dtype[R, K, m * C, H], scales f32[R, K, 1, m * C] or None.

    A pool [P, K, C * H] is P * K rows: merging its first axes is free. The first barrier ties the pool to this
    turn of the loop: XLA would widen the whole pool before the loop, for dtypes that its CPU compiler gathers
    in a wider type. The second keeps the gather a plain copy of whole rows: fused with what follows, the rows
    are copied number by number.
    """
    R = blocks.shape[0]
    P, K, _ = kv.k.shape
    pools = [pool for pool in (kv.k, kv.v, kv.k_scale, kv.v_scale) if pool is not None]
    blocks, pools = lax.optimization_barrier((blocks, pools))
    rows = (blocks[:, None, :] * K + jnp.arange(K).reshape(1, K, 1)).reshape(-1)
    taken = [jnp.take(pool.reshape(P * K, -1), rows, axis=0, mode="clip") for pool in pools]
    taken = lax.optimization_barrier(taken)
    keys, values = (x.reshape(R, K, -1, H).astype(dtype) for x in taken[:2])
    k_scale, v_scale = (x.reshape(R, K, 1, -1) for x in taken[2:]) if len(taken) == 4 else (None, None)
    return keys, values, k_scale, v_scale


def _visible(key_positions, positions, sliding_window):
    visible = key_positions <= positions
    return visible if sliding_window is None else visible & (key_positions > positions - sliding_window)


def _score(products, k_scale, visible, scoring):
    """q.k products f32[R, K, Q, S] -> scores, minus infinity where a query does not see a key."""
    scores = products * scoring.scale
    if k_scale is not None:
        scores = scores * k_scale
    if scoring.softcap is not None:
        scores = scoring.softcap * jnp.tanh(scores / scoring.softcap)
    return jnp.where(visible, scores, -jnp.inf)


def _weighted_sum(weights, values, visible):
    """weights [R, K, Q, S] times values [R, K, S, H], which count only where some query sees them.

    Unused slots may hold anything, and 0 * NaN is NaN. Clearing them costs a pass over all values, so it is
    done only when the small result shows that it was needed.
    """
    def weigh(values):
        return jnp.einsum("rkqs,rksh->rkqh", weights, values, preferred_element_type=jnp.float32)

    out = weigh(values)
    return lax.cond(
        jnp.isfinite(out.sum()),
        lambda: out,
        lambda: weigh(jnp.where(visible.any(2)[..., None], values, 0)),
    )


def _ceil_div(a, b):
    return (a + b - 1) // b
