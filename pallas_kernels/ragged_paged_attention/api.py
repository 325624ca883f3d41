"""The contract that every back end serves.

Legend: B sequences · T flat tokens · N query heads · K KV heads · G = N / K · H head width ·
P blocks in the pool · C tokens per block · M blocks per sequence.
"""

from dataclasses import dataclass

import jax

from pallas_kernels.ragged_paged_attention import reference, xla
from pallas_kernels.ragged_paged_attention.layout import check_pool
from pallas_kernels.ragged_paged_attention.pool import QUANTIZED, KVLayer


def _pallas_gpu(*args, **options):
    from pallas_kernels.ragged_paged_attention import gpu  # loaded where it is used: it needs a recent jax

    return gpu.ragged_paged_attention(*args, **options)


def _pallas_tpu(*args, **options):
    from pallas_kernels.ragged_paged_attention import tpu  # loaded where it is used

    return tpu.ragged_paged_attention(*args, **options)


BACKENDS = {
    "reference": reference.ragged_paged_attention, "xla": xla.ragged_paged_attention,
    "pallas_gpu": _pallas_gpu, "pallas_tpu": _pallas_tpu,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionMetadata:
    """Where each sequence's tokens and blocks are; the same for all layers of a step.

    Sequence i owns the flat queries [cu_q_lens[i], cu_q_lens[i+1]), which are the last of its kv_lens[i]
    tokens. The first `num_decodes` sequences have one query each. Padding sequences have kv_lens 0 and,
    in a mixed batch, no queries. Block ids past a sequence's length may be anything.
    """

    slot_mapping: jax.Array   # int32[T], block * C + offset where each new token's KV goes
    block_tables: jax.Array   # int32[B, M]
    kv_lens: jax.Array        # int32[B], including the new tokens
    cu_q_lens: jax.Array      # int32[B + 1]
    num_decodes: jax.Array    # int32[]


def ragged_paged_attention(
    q: jax.Array,                       # [T, N, H]
    k: jax.Array,                       # [T, K, H] keys of the new tokens
    v: jax.Array,                       # [T, K, H]
    kv: KVLayer,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,     # f32[N], an extra logit per head that takes part in the softmax only
    max_q_len: int | None = None,
    backend: str = "xla",
) -> tuple[jax.Array, KVLayer]:
    """Writes the new keys and values into the pool, then attends causally over each sequence's blocks.

    Query j of a sequence sees the tokens at positions p with p <= position(j), and with
    p > position(j) - sliding_window where a window is given. Scores are q.k * scale, then
    softcap * tanh(score / softcap) where given. `max_q_len` is static: the number of queries of every
    sequence where all have the same (1 in a decode step, so T = B * max_q_len), None for a mixed batch.

    Returns (out [T, N, H] in q's dtype, the updated pool). Rows of padding tokens are unspecified but
    finite. A row's result does not depend on other rows, but for the last bits.

    Raises ValueError for shapes that do not belong together and for an unknown back end.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is not one of {', '.join(BACKENDS)}; resolve_backend() picks one")
    _check(q, k, v, kv, metadata, sinks, max_q_len, backend)
    return BACKENDS[backend](
        q, k, v, kv, metadata,
        scale=scale, sliding_window=sliding_window, softcap=softcap, sinks=sinks, max_q_len=max_q_len,
    )


def _check(q, k, v, kv, metadata, sinks, max_q_len, backend) -> None:
    (T, N, H), (B, _) = q.shape, metadata.block_tables.shape
    K = k.shape[1]
    if N % K:
        raise ValueError(f"q has {N} heads, not a multiple of k's {K}")
    if k.shape != (T, K, H) or v.shape != k.shape:
        raise ValueError(f"k {k.shape} and v {v.shape} must both be [T, K, H] = {(T, K, H)} beside q {q.shape}")
    quantized = kv.k.dtype in QUANTIZED
    if quantized != (kv.k_scale is not None and kv.v_scale is not None):
        raise ValueError(f"a {kv.k.dtype} pool {'needs' if quantized else 'takes no'} scales; see kv_layer_spec")
    check_pool(kv, K, H, backend)
    if metadata.slot_mapping.shape != (T,) or metadata.kv_lens.shape != (B,) or metadata.cu_q_lens.shape != (B + 1,):
        raise ValueError(
            f"slot_mapping {metadata.slot_mapping.shape}, kv_lens {metadata.kv_lens.shape} and cu_q_lens "
            f"{metadata.cu_q_lens.shape} must be [T]={(T,)}, [B]={(B,)} and [B + 1]"
        )
    if sinks is not None and sinks.shape != (N,):
        raise ValueError(f"sinks {sinks.shape} must be [N] = {(N,)}")
    if max_q_len is not None and B * max_q_len != T:
        raise ValueError(f"max_q_len={max_q_len} for {B} sequences needs {B * max_q_len} tokens, found {T}")
