"""The TPU back end: writes the new tokens, cuts the queries into tiles and runs the kernel over them.

One kernel serves all. A decode step has one tile of one query a sequence; a mixed batch runs that for its leading
decodes and then wider tiles for the rest, both on one buffer that holds q before and the result after. Rows that no
tile covers (padding) keep their q.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention import tpu_pool
from pallas_kernels.ragged_paged_attention.pool import QUANTIZED
from pallas_kernels.ragged_paged_attention.tpu_kernel import Kernel
from pallas_kernels.ragged_paged_attention.tpu_shape import Memory, Shape, Tiles, scratch_shapes
from pallas_kernels.ragged_paged_attention.tpu_support import unsupported_shape
from pallas_kernels.ragged_paged_attention.tpu_write import write
from pallas_kernels.ragged_paged_attention.xla import Scoring

TABLE_WORDS = 1 << 17           # of block tables in scalar memory at once: half of it
TILE_ROWS = 2048                # queries times heads of a tile: what VMEM holds of their states with room to spare
CHUNK_BYTES = 4 << 20           # of keys (as many of values) in one of the two buffers
VMEM_LIMIT = 64 << 20           # bytes; half of what v5e and v6e have


class Tiling(NamedTuple):
    """Sizes that a tuner may set."""

    tile_tokens: int            # query tokens of a prefill tile, a power of two
    chunk_rows: int             # pool rows folded at once, a multiple of LANES


def default_tiling(num_heads: int, num_kv_heads: int, row_width: int) -> Tiling:
    """Row width in lanes."""
    tile_tokens = min(128, max(8, 1 << (TILE_ROWS // num_heads).bit_length() - 1))
    row_bytes = num_kv_heads * row_width * 4
    chunk_rows = 2 * tpu_pool.LANES if 2 * tpu_pool.LANES * row_bytes <= CHUNK_BYTES else tpu_pool.LANES
    return Tiling(tile_tokens, chunk_rows)


def plan(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, blocks_per_seq: int,
    dtype: Any, pool_dtype: Any, *, max_q_len: int | None, tiling: Tiling | None = None,
) -> list[Shape]:
    """The kernel's shapes that a call runs, one after another: a uniform batch one, a mixed one decodes and others."""
    lanes = tpu_pool.streams(head_dim) * tpu_pool.padded_width(head_dim)
    tiling = tiling or default_tiling(num_heads, num_kv_heads, lanes)
    widest = min(tiling.tile_tokens, 1 << num_tokens.bit_length() - 1)      # no copy is longer than the batch
    tile_tokens = [1, widest] if max_q_len is None else [min(1 << (max_q_len - 1).bit_length(), widest)]
    return [
        Shape(
            tokens, tiling.chunk_rows, num_kv_heads, num_heads // num_kv_heads, lanes,
            block_size // tpu_pool.streams(head_dim), tpu_pool.streams(head_dim), blocks_per_seq,
            jnp.dtype(dtype), jnp.dtype(pool_dtype), jnp.dtype(pool_dtype) in QUANTIZED,
        )
        for tokens in tile_tokens
    ]


def ragged_paged_attention(
    q, k, v, kv, metadata, *, scale, sliding_window=None, softcap=None, sinks=None, max_q_len=None,
    interpret: Any = False, tiling: Tiling | None = None,
):
    """See api.ragged_paged_attention. `interpret` and `tiling` are for tests and tuners.

    Raises ValueError, with the reason, for what the kernel cannot serve (tpu_support).
    """
    (T, N, H), K, C = q.shape, k.shape[1], tpu_pool.block_size_of(kv.k, q.shape[2])
    why_not = unsupported_shape(Need("tpu", H, C, kv.k.dtype, q.dtype, N // K))
    if why_not is not None:
        raise ValueError(f"backend='pallas_tpu' cannot serve this: {why_not}; use 'xla'")
    B, M = metadata.block_tables.shape
    kv = write(kv, k, v, metadata.slot_mapping, B, single=max_q_len == 1, interpret=interpret)
    shapes = plan(T, N, K, H, C, M, q.dtype, kv.k.dtype, max_q_len=max_q_len, tiling=tiling)
    lanes = shapes[0].row_width
    x = jnp.pad(q, ((0, 0), (0, 0), (0, lanes - H))).reshape(T, K, N // K, lanes)
    scoring = Scoring(scale, sliding_window, softcap, sinks)
    call = functools.partial(_attend, kv=kv, scoring=scoring, interpret=interpret)
    step = max(1, TABLE_WORDS // M)
    for first in range(0, B, step):
        part = _rows(metadata, first, min(first + step, B))
        if max_q_len is not None:
            x = call(x, part, _uniform_spans(part, first, max_q_len), shapes[0])
        else:
            for decodes, shape in zip((True, False), shapes, strict=True):
                x = call(x, part, _spans(part, first, decodes=decodes), shape)
    return x.reshape(T, N, lanes)[..., :H], kv


class Part(NamedTuple):
    """Some of a batch's sequences."""

    tables: jax.Array        # int32[b, M]
    kv_lens: jax.Array       # int32[b]
    cu_q_lens: jax.Array     # int32[b + 1]
    num_decodes: jax.Array   # int32[] of the whole batch


def _rows(metadata, first: int, last: int) -> Part:
    return Part(
        metadata.block_tables[first:last], metadata.kv_lens[first:last], metadata.cu_q_lens[first : last + 1],
        metadata.num_decodes,
    )


def _uniform_spans(part: Part, first: int, max_q_len: int) -> tuple[jax.Array, jax.Array, int]:
    """Each sequence's first flat token and number of tokens, int32[b] both; and the most tokens there can be."""
    b = part.kv_lens.shape[0]
    starts = (first + jnp.arange(b)) * max_q_len
    return starts, jnp.where(part.kv_lens > 0, max_q_len, 0), b * max_q_len


def _spans(part: Part, first: int, *, decodes: bool) -> tuple[jax.Array, jax.Array, int | None]:
    """The same of a mixed batch's leading decodes, or of the others; None: as many as the batch has."""
    b = part.kv_lens.shape[0]
    among = (first + jnp.arange(b) < part.num_decodes) == decodes
    counts = jnp.where(among, part.cu_q_lens[1:] - part.cu_q_lens[:-1], 0)
    return part.cu_q_lens[:-1], counts, b if decodes else None


def _tile_table(part: Part, starts: jax.Array, counts: jax.Array, tile_tokens: int, most: int) -> Tiles:
    """Tiles of up to `tile_tokens` in order of their tokens; at most `most` of them."""
    per_seq = -(-counts // tile_tokens)
    ends = jnp.cumsum(per_seq)
    tile = jnp.arange(most)
    seq = jnp.minimum(jnp.searchsorted(ends, tile, side="right", method="compare_all"), len(counts) - 1)
    done = (tile - ends[seq] + per_seq[seq]) * tile_tokens
    count = jnp.clip(counts[seq] - done, 0, tile_tokens)
    position = part.kv_lens[seq] - counts[seq] + done
    table = (ends[-1:], seq, starts[seq] + done, count, position, part.tables.reshape(-1))
    return Tiles(*(x.astype(jnp.int32) for x in table))


def _attend(x, part: Part, spans, shape: Shape, *, kv, scoring, interpret):
    """x [T, K, G, lanes] with the spans' queries replaced by their results."""
    T, K, G, _ = x.shape
    starts, counts, tokens = spans
    tile_tokens = shape.tile_tokens
    most = -(-(T if tokens is None else tokens) // tile_tokens) + (len(counts) if tile_tokens > 1 else 0)
    pools = [pool for pool in (kv.k, kv.v, kv.k_scale, kv.v_scale) if pool is not None]
    sinks = [] if scoring.sinks is None else [
        jnp.broadcast_to(scoring.sinks.astype(jnp.float32).reshape(K, G, 1), (K, G, tpu_pool.LANES))
    ]
    scratch = scratch_shapes(shape)

    def body(*refs):
        tiles, (queries, *inputs, out), buffers = Tiles(*refs[:6]), refs[6 : -len(scratch)], refs[-len(scratch) :]
        sinks_ref = inputs.pop() if sinks else None
        Kernel(shape, scoring, tiles, Memory(queries, inputs, sinks_ref, out, *buffers), bool(interpret)).run()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(Tiles._fields), grid=(1,),
            in_specs=[anywhere] * (1 + len(pools)) + [pl.BlockSpec(memory_space=pltpu.VMEM)] * len(sinks),
            out_specs=anywhere, scratch_shapes=list(scratch.values()),
        ),
        input_output_aliases={len(Tiles._fields): 0},
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VMEM_LIMIT),
        interpret=interpret,
        name="ragged_paged_attention",
    )(*_tile_table(part, starts, counts, tile_tokens, most), x, *pools, *sinks)
