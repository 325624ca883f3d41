"""What the TPU kernel is specialised for, what it is given, and the memory that it takes.

The legend is tpu_kernel's.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged_paged_attention.tpu_pool import LANES


class Shape(NamedTuple):
    """What the kernel is specialised for."""

    tile_tokens: int        # n, a power of two
    chunk_rows: int         # S
    num_kv_heads: int       # K
    group: int              # G
    row_width: int          # lanes of a pool row
    block_rows: int         # R
    streams: int
    blocks_per_seq: int     # M
    dtype: Any              # of queries and output
    pool_dtype: Any
    quantized: bool

    @property
    def rows(self) -> int:
        return self.tile_tokens * self.group

    @property
    def block_size(self) -> int:
        return self.block_rows * self.streams

    @property
    def chunk_tokens(self) -> int:
        return self.chunk_rows * self.streams

    @property
    def chunk_blocks(self) -> int:
        return self.chunk_rows // self.block_rows

    @property
    def dot_dtype(self) -> Any:
        return self.dtype if self.quantized else jnp.promote_types(self.dtype, self.pool_dtype)


class Tiles(NamedTuple):
    """The work, in scalar memory: each tile is up to n queries of one sequence."""

    number: Any     # int32[1] tiles that there are; the rest of the tables is not read
    seq: Any        # int32[tiles] row of the block table
    start: Any      # int32[tiles] flat index of the first query
    count: Any      # int32[tiles] queries
    position: Any   # int32[tiles] of the first query in its sequence
    tables: Any     # int32[B * M]


class Memory(NamedTuple):
    """HBM arrays, then VMEM buffers, then semaphores."""

    q: Any          # [T, K, G, lanes]
    pools: Any      # k, v and, where quantised, k_scale, v_scale
    sinks: Any      # f32[K, G, LANES] in VMEM, or None
    out: Any        # [T, K, G, lanes], the same memory as q
    q_buffer: Any   # [n, K, G, lanes]
    out_buffer: Any
    buffers: Any    # each pool's [2, K, S, lanes]; scales [2, chunk blocks, K, LANES]
    packed: Any     # [K, streams * rows, lanes] the tile's queries
    highest: Any    # f32[K, streams * rows, LANES]
    total: Any      # f32[K, streams * rows, LANES]
    acc: Any        # f32[K, streams * rows, lanes]
    q_sem: Any
    out_sem: Any
    kv_sems: Any    # one per buffer slot


def scratch_shapes(shape: Shape) -> dict[str, Any]:
    s = shape
    rows = s.streams * s.rows
    tokens = pltpu.VMEM((s.tile_tokens, s.num_kv_heads, s.group, s.row_width), s.dtype)
    buffers = [pltpu.VMEM((2, s.num_kv_heads, s.chunk_rows, s.row_width), s.pool_dtype)] * 2
    if s.quantized:
        buffers += [pltpu.VMEM((2, s.chunk_blocks, s.num_kv_heads, LANES), jnp.float32)] * 2
    statistic = pltpu.VMEM((s.num_kv_heads, rows, LANES), jnp.float32)
    return {
        "q_buffer": tokens, "out_buffer": tokens, "buffers": buffers,
        "packed": pltpu.VMEM((s.num_kv_heads, rows, s.row_width), s.dot_dtype),
        "highest": statistic, "total": statistic,
        "acc": pltpu.VMEM((s.num_kv_heads, rows, s.row_width), jnp.float32),
        "q_sem": pltpu.SemaphoreType.DMA, "out_sem": pltpu.SemaphoreType.DMA,
        "kv_sems": pltpu.SemaphoreType.DMA((2,)),
    }


def vmem_bytes(shape: Shape) -> int:
    """What the buffers take, in whole tiles of 8 rows (more for narrower types) and 128 lanes."""
    def padded(buffer) -> int:
        itemsize = jnp.dtype(buffer.dtype).itemsize
        *outer, rows, lanes = buffer.shape
        sublanes = 32 // itemsize
        return math.prod(outer) * -(-rows // sublanes) * sublanes * -(-lanes // LANES) * LANES * itemsize

    buffers = {name: x for name, x in scratch_shapes(shape).items() if "sem" not in name}
    return sum(padded(x) for x in jax.tree.leaves(buffers))
