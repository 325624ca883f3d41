"""What the Hopper kernels share: layouts, scoring in base 2, and the forms that differ under the interpreter.

Scores are kept in base 2 (exp2 is the hardware's own), so log2(e) is folded into the scale. A masked score is minus
infinity and the running maximum starts at a finite LOWEST: a wholly masked tile then changes nothing, bit for bit,
which is what makes a row's result independent of the tiles that its neighbours need.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

LOG2E = math.log2(math.e)
LOWEST = -1e30

WGMMA = plgpu.Layout.WGMMA               # [m, n] in the registers of a warpgroup, as the tensor cores leave it
PER_ROW = WGMMA.reduce(1)                # [m] beside a WGMMA array
PER_COLUMN = WGMMA.reduce(0)             # [n] beside a WGMMA array

SMEM_LIMIT = 232_448                     # bytes of shared memory that a block of threads may have on Hopper


@dataclass(frozen=True)
class Scoring:
    """What turns q.k into a score; static."""

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None


def swizzled(dtype: Any, width: int) -> tuple[Any, ...]:
    """Transforms of shared memory [rows, width]: swizzled tiles of 8 rows by 64 numbers, as wgmma reads 16-bit ones."""
    tiling: Any = plgpu.TilingTransform
    swizzle: Any = plgpu.SwizzleTransform
    assert width % 64 == 0
    return tiling((8, 64)), swizzle(64 * jnp.dtype(dtype).itemsize)


def full(shape: tuple[int, ...], value: float, layout: Any) -> jax.Array:
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def iota(shape: tuple[int, int], axis: int) -> jax.Array:
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=WGMMA)


def across(x: jax.Array, shape: tuple[int, int], axis: int) -> jax.Array:
    """Repeats x [shape[axis]] along the other axis."""
    return lax.broadcast_in_dim(x, shape, (axis,))


def base2_scores(products: jax.Array, scoring: Scoring) -> jax.Array:
    """q.k products, f32 -> scores times log2(e)."""
    if scoring.softcap is None:
        return products * (scoring.scale * LOG2E)
    return jnp.tanh(products * (scoring.scale / scoring.softcap)) * (scoring.softcap * LOG2E)


def matmul(a: Any, b: Any, shape: tuple[int, int]) -> jax.Array:
    """a @ b by the tensor cores, both in shared memory -> f32[shape] in the WGMMA layout. Waits for the result."""
    def run(acc: Any) -> jax.Array:
        plgpu.wgmma(acc, a, b)
        return acc[...]
    return pl.run_scoped(run, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))


def matmul_add(acc: jax.Array, a: jax.Array, b: Any, interpret: bool) -> jax.Array:
    """acc + a @ b with `a` in registers and `b` in shared memory.

    The interpreter has no tensor-core product with an operand in registers; there a plain one stands in.
    """
    if interpret:
        product = acc + jnp.dot(a.astype(jnp.float32), b[...].astype(jnp.float32), precision="highest")
        plgpu.commit_smem()
        return product
    accumulate: Any = pl.run_state(lambda acc_ref: plgpu.wgmma(acc_ref, a, b))
    return accumulate(plgpu.WGMMAAccumulatorRef.init(acc))


def clear_rows(values: Any, start: Any, stop: Any) -> None:
    """Zeroes the rows of a tile [S, H] outside [start, stop): they may hold anything, and 0 * NaN is NaN.

    In pieces of 64 by 64, which take few registers.
    """
    for row in range(0, values.shape[0], 64):
        for column in range(0, values.shape[1], 64):
            piece = values.at[pl.ds(row, 64), pl.ds(column, 64)]
            place = row + iota((64, 64), 0)
            kept = plgpu.load(piece, layout=WGMMA)
            piece[...] = jnp.where((place >= start) & (place < stop), kept, jnp.zeros_like(kept))


def dequantize(stored: Any, scales: Any, out: Any, start: Any, stop: Any) -> None:
    """Widens a tile [S, H] of 8-bit values to the 16 bits of `out` and scales its rows by `scales` [S].

    Rows outside [start, stop) become zero, whatever they hold. float16 holds fp8_e4m3 and int8 exactly.
    """
    for row in range(0, stored.shape[0], 64):
        place = row + iota((64, 64), 0)
        seen = (place >= start) & (place < stop)
        scale = plgpu.load(scales.at[pl.ds(row, 64)], layout=PER_ROW, optimized=False)
        for column in range(0, stored.shape[1], 64):      # in pieces that take few registers
            piece = pl.ds(row, 64), pl.ds(column, 64)
            values = plgpu.load(stored.at[piece], layout=plgpu.Layout.WGMMA_UPCAST_2X).astype(jnp.float16)
            values = plgpu.layout_cast(values, WGMMA).astype(jnp.float32) * across(scale, (64, 64), 0)
            out[piece] = jnp.where(seen, values, 0.0).astype(out.dtype)


def wait_if(condition: Any, barrier: Any) -> None:
    @pl.when(condition)
    def _():
        plgpu.barrier_wait(barrier)


def ceil_div(a: Any, b: int) -> Any:
    """For a >= 0; traced numbers too."""
    return (a + (b - 1)) // b if isinstance(a, int) else lax.div(a + (b - 1), jnp.int32(b))
