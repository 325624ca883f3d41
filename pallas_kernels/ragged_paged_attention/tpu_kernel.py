"""The TPU kernel's body: one loop over tiles of queries, an inner one over chunks of their sequence's KV.

Everything large stays in HBM and is copied by hand. While a chunk is folded into the online softmax, the next one
(of this tile or the next tile, then with the next tile's queries) is under way, so there is no bubble between
sequences. Chunks are counted from position 0 and have one size, so a row's result depends neither on what else is
in the batch nor on where its prompt was cut.

Legend: n query tokens of a tile · rows = n * G query rows of one KV head · S pool rows of a chunk · streams: tokens
that share a pool row (see tpu_pool). Two streams are two softmaxes over half of the tokens each, stacked along the
rows: the queries of stream 1 stand in the upper lanes, zeros elsewhere, and the two merge at the end.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged_paged_attention.tpu_copy import do_copy
from pallas_kernels.ragged_paged_attention.tpu_pool import LANES
from pallas_kernels.ragged_paged_attention.tpu_shape import Memory, Shape, Tiles
from pallas_kernels.ragged_paged_attention.xla import Scoring

UNROLLED_HEADS = 8          # at most
UNROLLED_ROWS = 512         # of all of them; more only compile longer
LOWEST = -1e30      # a running maximum before any score; finite, so that exp(-inf - it) is 0


class Kernel:
    """Traces the body: the static shape, and the refs of one call."""

    def __init__(self, shape: Shape, scoring: Scoring, tiles: Tiles, memory: Memory, interpret: bool) -> None:
        self.shape, self.scoring, self.tiles, self.memory = shape, scoring, tiles, memory
        # Heads in flight at once, for one's dots hide another's softmax. The interpreter would only compile more.
        fitting = max(1, UNROLLED_ROWS // (shape.streams * shape.rows))
        self.unroll = 1 if interpret else min(shape.num_kv_heads, UNROLLED_HEADS, fitting)
        self.precision = lax.Precision.HIGHEST if shape.dot_dtype == jnp.float32 else None

    def run(self) -> None:
        number = self.tiles.number[0]

        @pl.when(number > 0)
        def _():
            self.copy_queries(0, start=True)
            self.copy_chunk(0, self.chunks(0)[0], 0, start=True)

        def tile(i, slot):
            self.copy_queries(i, start=False)
            self.begin()
            first, last = self.chunks(i)
            slot = lax.fori_loop(first, last, lambda c, slot: self.chunk(i, c, last, slot), slot)
            pl.when(i > 0)(lambda: self.copy_result(i - 1, start=False))
            self.finish()
            self.copy_result(i, start=True)
            return slot

        lax.fori_loop(0, number, tile, 0)
        pl.when(number > 0)(lambda: self.copy_result(number - 1, start=False))

    def chunks(self, i):
        """The chunks [first, last) that some query of tile i sees; at least one."""
        tokens, position = self.shape.chunk_tokens, self.tiles.position[i]
        last = pl.cdiv(position + self.tiles.count[i], tokens)
        if self.scoring.sliding_window is None:
            return 0, last
        return lax.div(jnp.maximum(position - self.scoring.sliding_window + 1, 0), tokens), last

    # Copies. Each is issued and awaited by the same code, so that counts and sizes agree.

    def copy_chunk(self, i, chunk, slot, *, start: bool) -> None:
        """The blocks of a chunk that tile i sees; what lies past them in the buffer is stale."""
        s, m = self.shape, self.memory
        end = self.tiles.position[i] + self.tiles.count[i]
        number = jnp.minimum(pl.cdiv(end - chunk * s.chunk_tokens, s.block_size), s.chunk_blocks)
        base = self.tiles.seq[i] * s.blocks_per_seq + chunk * s.chunk_blocks

        def block(b, _):
            rows = pl.ds(pl.multiple_of(b * s.block_rows, s.block_rows), s.block_rows)
            for pool, buffer, scales in zip(m.pools, m.buffers, (False, False, True, True), strict=False):
                target = buffer.at[slot, b] if scales else buffer.at[slot, :, rows]
                do_copy(start, pool.at[self.tiles.tables[base + b]], target, m.kv_sems.at[slot])
            return _

        lax.fori_loop(0, number, block, None)

    def copy_queries(self, i, *, start: bool) -> None:
        m = self.memory
        for here, there in self.spans(i):
            here(lambda at=there: do_copy(start, m.q.at[at[0]], m.q_buffer.at[at[1]], m.q_sem))

    def copy_result(self, i, *, start: bool) -> None:
        m = self.memory
        for here, there in self.spans(i):
            here(lambda at=there: do_copy(start, m.out_buffer.at[at[1]], m.out.at[at[0]], m.out_sem))

    def spans(self, i):
        """Exactly the tile's tokens, as copies of fixed size: one for each binary digit of their number.

        Yields (pl.when(digit is set), (slice of flat tokens, slice of the tile)).
        """
        start, count = self.tiles.start[i], self.tiles.count[i]
        size = self.shape.tile_tokens
        while size:
            offset = count & -(2 * size)
            yield pl.when(count & size != 0), (pl.ds(start + offset, size), pl.ds(offset, size))
            size //= 2

    # Arithmetic

    def each_head(self, body) -> None:
        lax.fori_loop(0, self.shape.num_kv_heads, lambda head, _: body(head), None, unroll=self.unroll)

    def begin(self) -> None:
        """Packs the tile's queries by head and starts the softmaxes."""
        s, m = self.shape, self.memory
        m.highest[...] = jnp.full_like(m.highest, LOWEST)
        m.total[...] = jnp.zeros_like(m.total)
        m.acc[...] = jnp.zeros_like(m.acc)

        def pack(head):
            q = m.q_buffer[:, head].reshape(s.rows, s.row_width).astype(s.dot_dtype)
            m.packed[head, : s.rows] = q
            if s.streams == 2:
                upper = _rotate(q.astype(jnp.float32), s.row_width // 2)
                m.packed[head, s.rows :] = upper.astype(s.dot_dtype)

        self.each_head(pack)

    def chunk(self, i, c, last, slot):
        """Folds chunk c into the softmaxes while the next chunk is copied; returns that one's slot."""
        other = 1 - slot

        @pl.when(c + 1 < last)
        def _():
            self.copy_chunk(i, c + 1, other, start=True)

        @pl.when((c + 1 == last) & (i + 1 < self.tiles.number[0]))
        def _():
            self.copy_queries(i + 1, start=True)
            self.copy_chunk(i + 1, self.chunks(i + 1)[0], other, start=True)

        self.copy_chunk(i, c, slot, start=False)
        first_token = c * self.shape.chunk_tokens
        position = self.tiles.position[i]
        pl.when(c + 1 == last)(lambda: self.clear(slot, position + self.tiles.count[i] - first_token))
        visible = self.visible(first_token, position)
        self.each_head(lambda head: self.fold(head, slot, visible))
        return other

    def clear(self, slot, tokens) -> None:
        """Zeroes what lies past the chunk's first `tokens`, where NaN may stand in an unused slot: 0 * NaN is NaN.

        Values always; keys only where two tokens share a row, for zeros of the query meet the other one's key.
        """
        s = self.shape
        if jnp.issubdtype(s.pool_dtype, jnp.integer):
            return
        lane = lax.broadcasted_iota(jnp.int32, (s.chunk_rows, s.row_width), 1)
        row = lax.broadcasted_iota(jnp.int32, (s.chunk_rows, s.row_width), 0)
        stream = (lane >= s.row_width // s.streams).astype(jnp.int32) if s.streams == 2 else 0
        used = self.token(row, stream) < tokens

        def clear_head(head):
            for buffer in self.memory.buffers[2 - s.streams : 2]:
                kept = jnp.where(used, buffer[slot, head].astype(jnp.float32), 0.0)
                buffer[slot, head] = kept.astype(s.pool_dtype)

        self.each_head(clear_head)

    def token(self, row, stream):
        """The token of a chunk that stands in a pool row's stream."""
        s = self.shape
        if s.streams == 1:
            return row
        block = _divide(row, s.block_rows)
        return row + (block + stream) * s.block_rows          # block * C + stream * R + row % R, where C = 2 R

    def visible(self, first_token, position):
        """bool[streams * rows, S]: which query row sees which pool row."""
        s, window = self.shape, self.scoring.sliding_window
        row = lax.broadcasted_iota(jnp.int32, (s.streams * s.rows, s.chunk_rows), 0)
        stream = (row >= s.rows).astype(jnp.int32)
        query = position + _divide(row - stream * s.rows, s.group, s.rows)
        key = first_token + self.token(lax.broadcasted_iota(jnp.int32, row.shape, 1), stream)
        return key <= query if window is None else (key <= query) & (key > query - window)

    def fold(self, head, slot, visible) -> None:
        """One KV head's chunk into its softmaxes."""
        s, m = self.shape, self.memory
        keys, values = (x[slot, head].astype(s.dot_dtype) for x in m.buffers[:2])
        scores = lax.dot_general(
            m.packed[head], keys, (((1,), (1,)), ((), ())), precision=self.precision,
            preferred_element_type=jnp.float32,
        ) * self.scoring.scale
        if s.quantized:
            scores = scores * self.scales(m.buffers[2], head, slot)
        if self.scoring.softcap is not None:
            scores = self.scoring.softcap * jnp.tanh(scores / self.scoring.softcap)
        scores = jnp.where(visible, scores, -jnp.inf)

        before = m.highest[head]
        highest = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - highest[:, :1])
        decay = jnp.exp(before - highest)
        m.highest[head] = highest
        m.total[head] = m.total[head] * decay + jnp.sum(weights, axis=1, keepdims=True)
        if s.quantized:
            weights = jnp.where(visible, weights * self.scales(m.buffers[3], head, slot), 0.0)
        m.acc[head] = m.acc[head] * decay[:, :1] + jnp.dot(
            weights.astype(s.dot_dtype), values, precision=self.precision, preferred_element_type=jnp.float32
        )

    def scales(self, buffer, head, slot):
        """A chunk's scales along the lanes: f32[1 or streams * rows, S]."""
        s = self.shape
        table = buffer[slot, :, head]                                       # [chunk blocks, LANES]
        lane = lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        per_stream = [table]
        if s.streams == 2:
            swapped = _rotate(table, s.block_rows)
            lower = lax.broadcasted_iota(jnp.int32, table.shape, 1) & s.block_rows == 0
            per_stream = [jnp.where(lower, table, swapped), jnp.where(lower, swapped, table)]
        across = []
        for x in per_stream:
            groups = []
            for g in range(0, s.chunk_rows, LANES):
                row = jnp.zeros((1, LANES), jnp.float32)
                for b in range(g // s.block_rows, (g + LANES) // s.block_rows):
                    row = jnp.where(_divide(lane, s.block_rows) == b - g // s.block_rows, x[b : b + 1], row)
                groups.append(row)
            across.append(jnp.concatenate(groups, axis=1))
        if s.streams == 1:
            return across[0]
        row = lax.broadcasted_iota(jnp.int32, (s.streams * s.rows, s.chunk_rows), 0)
        return jnp.where(row < s.rows, across[0], across[1])

    def finish(self) -> None:
        """Merges the streams and the sinks, divides, and lays the result out by token."""
        s, m = self.shape, self.memory

        def finish_head(head):
            highest, total, acc = m.highest[head], m.total[head], m.acc[head]
            if s.streams == 2:
                highest, total, acc = _merge(highest, total, acc, s.rows)
            highest, total = highest[:, :1], total[:, :1]
            if m.sinks is not None:
                sink = jnp.broadcast_to(m.sinks[head][None], (s.tile_tokens, s.group, LANES))
                sink = jnp.maximum(sink.reshape(s.rows, LANES)[:, :1], LOWEST)
                both = jnp.maximum(highest, sink)
                decay = jnp.exp(highest - both)
                total, acc = total * decay + jnp.exp(sink - both), acc * decay
            result = acc / jnp.where(total > 0, total, 1.0)
            m.out_buffer[:, head] = result.reshape(s.tile_tokens, s.group, s.row_width).astype(s.dtype)

        self.each_head(finish_head)


def _merge(highest, total, acc, rows: int):
    """Two stacked softmaxes -> one; the upper stream's values lie in the upper lanes."""
    (h0, h1), (t0, t1) = (highest[:rows], highest[rows:]), (total[:rows], total[rows:])
    both = jnp.maximum(h0, h1)
    d0, d1 = jnp.exp(h0 - both), jnp.exp(h1 - both)
    upper = _rotate(acc[rows:], acc.shape[1] // 2)
    return both, t0 * d0 + t1 * d1, acc[:rows] * d0[:, :1] + upper * d1[:, :1]


def _rotate(x, lanes: int):
    return pltpu.roll(x, lanes, 1)


def _divide(x, by: int, below: int = 0):
    """x // by for 0 <= x < below (any x >= 0 for a power of two); the vector unit has no division."""
    if by & (by - 1) == 0:
        return x >> (by.bit_length() - 1)
    inverse = (1 << 16) // by + 1
    assert below * (inverse * by - (1 << 16)) < 1 << 16, f"{below} / {by} needs a longer reciprocal"
    return (x * inverse) >> 16
