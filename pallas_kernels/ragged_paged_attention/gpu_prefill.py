"""Prefill attention for Hopper: tiles of one sequence's queries over that sequence's blocks.

A work item is a tile of query tokens and one KV head. Its rows are the G query heads that share the KV head times the
tile's tokens, head-major, 64 for each computing warpgroup; a further warpgroup copies the KV cache ahead of them. Two
computing warpgroups take turns, one on the tensor cores while the other does its softmax (FlashAttention-3, Shah et
al., 2024). Blocks of threads are as many as the GPU holds; the items go to them longest first, there and back.

KV tiles are counted from position 0, and a tile that a row does not see changes nothing in it, so a row's result does
not depend on which rows share its tile, nor on where a prompt was cut into chunks.

Legend: T, N, K, G, H, P, C, M, B as in api.py · Q tokens of a tile · S tokens of a KV tile · W rows of the tile table.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention.gpu_common import (
    LOG2E,
    LOWEST,
    PER_ROW,
    WGMMA,
    Scoring,
    across,
    clear_rows,
    full,
    iota,
    matmul_add,
    swizzled,
    wait_if,
)
from pallas_kernels.ragged_paged_attention.gpu_ring import Ring, block_ids
from pallas_kernels.ragged_paged_attention.gpu_work import TileTable

ROWS = 64      # of a computing warpgroup: the height of a tensor-core product
COMPUTE_REGISTERS, PRODUCER_REGISTERS = 232, 40      # a thread; two computing warpgroups and one fill 504 of 512


@dataclass(frozen=True)
class PrefillTile:
    """Sizes to tune: tokens of a KV tile, tiles in flight, computing warpgroups, blocks of threads on the GPU."""

    kv_tile: int = 128
    stages: int = 2
    warpgroups: int = 2
    ctas: int = 132

    def tokens(self, group: int) -> int:
        """Query tokens of a tile: a multiple of 8, so that a head's rows start where copies may."""
        return self.warpgroups * ROWS // group // 8 * 8


class _Item(NamedTuple):
    seq: Any
    load: Any            # first flat token whose query is loaded
    start: Any           # flat tokens [start, stop) are written
    stop: Any
    position: Any        # of token `load` in its sequence
    first_tile: Any      # KV tiles [first_tile, last_tile) are visited
    last_tile: Any
    kv_len: Any
    head: Any


class _Refs(NamedTuple):
    q: Any               # [T, N, H]
    k: Any               # [P, K, C, H], and scales f32[P, K, C] of a quantised pool
    v: Any
    tables: Any          # int32[B, M]
    items: Any
    total: Any
    sinks: Any           # f32[K, rows], log2 of a weight that every row starts with; None without sinks
    out: Any             # [T, N, H]
    q_raw: Any           # queries as they arrive, rows not aligned to wgmma's tiles
    q_smem: Any
    k_ring: Any          # scratch of a Ring
    v_ring: Any
    out_smem: Any
    q_ready: Any
    q_free: Any
    turn: Any            # the two computing warpgroups meet here

    @property
    def keys(self) -> Any:
        return self.k, self.k_ring

    @property
    def values(self) -> Any:
        return self.v, self.v_ring


class _Prefill:
    """The kernel's body: the shapes, and what each warpgroup does."""

    def __init__(self, q, pool, tile: PrefillTile, scoring: Scoring, has_sinks: bool, interpret: bool) -> None:
        _, self.N, self.H = q.shape
        _, self.K, self.C, _ = pool[0].shape
        self.G, self.dtype = self.N // self.K, q.dtype
        self.tile, self.scoring, self.has_sinks, self.interpret = tile, scoring, has_sinks, interpret
        self.tokens = tile.tokens(self.G)
        self.ring = Ring(
            tile.stages, tile.kv_tile, self.C, self.H, pool[0].dtype, quantized=pool[1] is not None,
            readers=tile.warpgroups,
        )

    def __call__(self, *args: Any) -> None:
        refs = _Refs._make(args if self.has_sinks else (*args[:6], None, *args[6:]))
        warpgroups, wg = self.tile.warpgroups, lax.axis_index("wg")

        @pl.when(wg == warpgroups)
        def _():
            if warpgroups == 2:
                plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")
            self._produce(refs, *self._share(refs))

        @pl.when(wg < warpgroups)
        def _():
            if warpgroups == 2:
                plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
            self._compute(refs, *self._share(refs), wg)

    def _share(self, refs: _Refs) -> tuple[Any, Any]:
        """This block of threads' items: a function of their index, and how many there are."""
        ctas, cta = self.tile.ctas, lax.axis_index("cta")
        total = refs.total[0] * self.K
        rounds = lax.div(total, ctas)

        def place(i: Any) -> Any:      # there and back, so that no block of threads always gets the longest
            return jnp.where(lax.rem(i, 2) == 0, cta, ctas - 1 - cta)

        def item(i: Any) -> _Item:
            at = i * ctas + place(i)
            row, head = lax.div(at, self.K), lax.rem(at, self.K)
            return _Item._make([*(refs.items[row, j] for j in range(8)), head])

        return item, rounds + (place(rounds) < total - rounds * ctas).astype(jnp.int32)

    # The producer.

    def _produce(self, refs: _Refs, item: Any, num_items: Any) -> None:
        ring, Q = self.ring, self.tokens

        def load_tile(it, t, n):
            ids = block_ids(refs.tables, it.seq, t, ring.blocks, lax.div(it.kv_len - 1, self.C))
            ring.load(refs.keys, n, ids, it.head)
            ring.load(refs.values, n, ids, it.head)
            return n + 1

        def load_item(i, n):
            it = item(i)
            wait_if(i > 0, refs.q_free)
            for g in range(self.G):
                plgpu.copy_gmem_to_smem(
                    refs.q.at[pl.ds(it.load, Q), it.head * self.G + g], refs.q_raw.at[pl.ds(g * Q, Q)], refs.q_ready
                )
            return lax.fori_loop(it.first_tile, it.last_tile, lambda t, n: load_tile(it, t, n), n)

        n = lax.fori_loop(0, num_items, load_item, jnp.int32(0))
        ring.drain(refs.keys, n)
        ring.drain(refs.values, n)
        wait_if(num_items > 0, refs.q_free)

    # The computing warpgroups.

    def _meet(self, refs: _Refs) -> None:
        plgpu.barrier_arrive(refs.turn)
        plgpu.barrier_wait(refs.turn)

    def _compute(self, refs: _Refs, item: Any, num_items: Any, wg: Any) -> None:
        taking_turns = self.tile.warpgroups == 2
        if taking_turns:      # half a step behind the other
            pl.when(wg == 1)(lambda: self._meet(refs))
        lax.fori_loop(0, num_items, lambda i, n: self._attend(refs, item(i), n, wg), jnp.int32(0))
        if taking_turns:
            pl.when(wg == 0)(lambda: self._meet(refs))
        plgpu.wait_smem_to_gmem(0)

    def _attend(self, refs: _Refs, it: _Item, n: Any, wg: Any) -> Any:
        S, H = self.tile.kv_tile, self.H
        rows = pl.ds(pl.multiple_of(wg * ROWS, ROWS), ROWS)
        plgpu.barrier_wait(refs.q_ready)
        refs.q_smem[wg] = plgpu.load(refs.q_raw.at[rows], layout=WGMMA, optimized=False)
        plgpu.commit_smem()
        plgpu.barrier_arrive(refs.q_free)

        highest, total = full((ROWS,), LOWEST, PER_ROW), full((ROWS,), 0, PER_ROW)
        if self.has_sinks:      # a key that was seen already and has no value
            highest = plgpu.load(refs.sinks.at[it.head, rows], layout=PER_ROW, optimized=False)
            total = full((ROWS,), 1, PER_ROW)
        carry = (n, highest, total, full((ROWS, H), 0, WGMMA))
        seen_by_all = it.first_tile
        if self.scoring.sliding_window is None:
            seen_by_all = lax.div(it.position + it.start - it.load + 1, S)
            carry = lax.fori_loop(
                it.first_tile, seen_by_all, lambda t, c: self._fold(refs, it, wg, t, c, masked=False), carry
            )
        n, _, total, acc = lax.fori_loop(
            seen_by_all, it.last_tile, lambda t, c: self._fold(refs, it, wg, t, c, masked=True), carry
        )
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        refs.out_smem[rows] = (acc / across(total, (ROWS, H), 0)).astype(self.dtype)
        plgpu.commit_smem()
        for w in range(self.tile.warpgroups):
            pl.when(wg == w)(lambda w=w: self._write(refs, it, w))
        return n

    def _fold(self, refs: _Refs, it: _Item, wg: Any, t: Any, carry: Any, masked: bool) -> Any:
        """One KV tile into the online softmax.

        The exponent is one multiply-add of the raw product in both forms, masked or not, so that they agree to the bit.
        """
        n, highest, total, acc = carry
        S, H, taking_turns = self.tile.kv_tile, self.H, self.tile.warpgroups == 2
        shape, start, stop = (ROWS, S), self._first_seen(it) - t * S, it.kv_len - t * S
        keys = self.ring.take(refs.keys, n, start, stop)

        def multiply(acc_ref: Any) -> jax.Array:
            plgpu.wgmma(acc_ref, refs.q_smem.at[wg], keys.transpose((1, 0)))
            if taking_turns:
                self._meet(refs)
            return acc_ref[...]

        scores = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))
        self.ring.release(refs.keys, n)

        factor = self.scoring.scale * LOG2E
        if self.scoring.softcap is not None:
            scores = jnp.tanh(scores * (self.scoring.scale / self.scoring.softcap))
            factor = self.scoring.softcap * LOG2E
        if masked:
            scores = jnp.where(self._visible(it, wg, t * S), scores, -jnp.inf)
        new_highest = jnp.maximum(highest, scores.max(axis=1) * factor)
        weights = jnp.exp2(scores * factor - across(new_highest, shape, 0))
        decay = jnp.exp2(highest - new_highest)
        total = total * decay + weights.sum(axis=1)
        acc = acc * across(decay, (ROWS, H), 0)
        weights = weights.astype(self.dtype)

        if taking_turns:
            acc, total, new_highest, weights = lax.optimization_barrier((acc, total, new_highest, weights))
            plgpu.barrier_arrive(refs.turn)
        values = self.ring.take(refs.values, n, start, stop)
        if taking_turns:
            plgpu.barrier_wait(refs.turn)
        if masked and not self.ring.quantized:
            self._clear_unseen(values, wg, start, stop)
        acc = matmul_add(acc, weights, values, self.interpret)
        self.ring.release(refs.values, n)
        return n + 1, new_highest, total, acc

    def _visible(self, it: _Item, wg: Any, base: Any) -> jax.Array:
        """Which keys of the tile from `base` on each row sees: its own position is the last, [ROWS, S]."""
        shape = (ROWS, self.tile.kv_tile)
        row = plgpu.broadcasted_iota(jnp.int32, (ROWS,), 0, layout=PER_ROW)
        last = it.position - base + lax.rem(wg * ROWS + row, jnp.int32(self.tokens))
        key = iota(shape, 1)
        visible = key <= across(last, shape, 0)
        if self.scoring.sliding_window is not None:
            visible &= key > across(last - self.scoring.sliding_window, shape, 0)
        return visible

    def _first_seen(self, it: _Item) -> Any:
        """The first position that any of the tile's queries sees."""
        window = self.scoring.sliding_window
        return jnp.int32(0) if window is None else it.position + it.start - it.load - window + 1

    def _clear_unseen(self, values: Any, wg: Any, start: Any, stop: Any) -> None:
        """Zeroes rows outside [start, stop), which may hold anything.

        The first warpgroup does it: taking turns, the second comes to its product after the first one's.
        """
        @pl.when((wg == 0) & ((start > 0) | (stop < self.tile.kv_tile)))
        def _():
            clear_rows(values, start, stop)
            plgpu.commit_smem()

    def _write(self, refs: _Refs, it: _Item, wg: int) -> None:
        """Copies the rows of warpgroup `wg` that belong to tokens [start, stop) out, one head's run at a time."""
        Q = self.tokens
        start, stop = it.start - it.load, it.stop - it.load
        for g in range(self.G):
            first, last = max(wg * ROWS, g * Q), min((wg + 1) * ROWS, (g + 1) * Q)
            if first >= last:
                continue
            low, high, head = first - g * Q, last - g * Q, it.head * self.G + g
            whole = (start <= low) & (stop >= high)

            @pl.when(whole)
            def _(first=first, low=low, size=high - low, head=head):
                source = refs.out_smem.at[pl.ds(first, size)]
                plgpu.copy_smem_to_gmem(source, refs.out.at[pl.ds(it.load + low, size), head])

            @pl.when(jnp.logical_not(whole))
            def _(g=g, low=low, high=high, head=head):
                def row(i, _):
                    plgpu.copy_smem_to_gmem(
                        refs.out_smem.at[pl.ds(g * Q + i, 1)], refs.out.at[pl.ds(it.load + i, 1), head]
                    )
                lax.fori_loop(jnp.maximum(start, low), jnp.minimum(stop, high), row, None)


def prefill(
    q: jax.Array,                                # [T, N, H], T at least a tile's tokens
    k: tuple[jax.Array, jax.Array | None],       # [P, K, C, H], and scales f32[P, K, C] of a quantised pool
    v: tuple[jax.Array, jax.Array | None],
    tables: jax.Array,                           # int32[B, M]
    work: TileTable,
    sinks: jax.Array | None = None,              # f32[K, rows of a tile], in base 2
    *,
    tile: PrefillTile,
    scoring: Scoring,
    interpret: Any = None,
) -> jax.Array:
    """-> [T, N, H]; the rows of tokens outside the table's tiles are not written.

    q is float16, and the tile has one warpgroup, where the pool is quantised.
    """
    H, warpgroups = q.shape[2], tile.warpgroups
    body = _Prefill(q, k, tile, scoring, sinks is not None, interpret is not None)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_types=(
            plgpu.SMEM((warpgroups * ROWS, H), q.dtype),
            plgpu.SMEM((warpgroups, ROWS, H), q.dtype, transforms=swizzled(q.dtype, H)),
            body.ring.scratch(), body.ring.scratch(),
            plgpu.SMEM((warpgroups * ROWS, H), q.dtype),
            plgpu.Barrier(num_arrivals=body.G), plgpu.Barrier(num_arrivals=warpgroups), plgpu.Barrier(num_arrivals=2),
        ),
        grid=(tile.ctas,), grid_names=("cta",), num_threads=warpgroups + 1, thread_name="wg",
        kernel_name="prefill_attention",
        compiler_params=plgpu.CompilerParams(approx_math=True), interpret=interpret,
    )(q, k, v, tables, work.items, work.total, *(() if sinks is None else (sinks,)))
