"""Joins the splits of decode attention: a softmax over each row's splits, in their order.

The order is fixed, and a row with fewer splits simply stops sooner, so the result does not depend on the batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention.gpu_common import LOWEST, PER_COLUMN, WGMMA, across, full


def combine_splits(
    parts: jax.Array,          # f32[W, K, H, R]
    lse: jax.Array,            # f32[W, K, R]
    first: jax.Array,          # int32[B] first row of each sequence
    count: jax.Array,          # int32[B] rows of each sequence
    sinks: jax.Array | None,   # f32[K, R], in base 2
    *,
    group: int,
    dtype: Any,
    interpret: Any = None,
) -> jax.Array:
    """-> dtype[B, K, group, H]; zeros for a sequence without rows."""
    _, K, H, R = parts.shape
    B = first.shape[0]
    given = () if sinks is None else (sinks,)

    def body(parts_ref, lse_ref, first_ref, count_ref, *refs):
        *sink_ref, out_ref, out_smem = refs
        seq, head = lax.axis_index("seq"), lax.axis_index("head")
        start = first_ref[seq]

        def fold(i, carry):
            highest, total, acc = carry
            part = plgpu.load(parts_ref.at[start + i, head], layout=WGMMA, optimized=False)
            weight = plgpu.load(lse_ref.at[start + i, head], layout=PER_COLUMN, optimized=False)
            new_highest = jnp.maximum(highest, weight)
            decay, weight = jnp.exp2(highest - new_highest), jnp.exp2(weight - new_highest)
            acc = acc * across(decay, (H, R), 1) + part * across(weight, (H, R), 1)
            return new_highest, total * decay + weight, acc

        highest, total, acc = lax.fori_loop(
            0, count_ref[seq], fold, (full((R,), LOWEST, PER_COLUMN), full((R,), 0, PER_COLUMN), full((H, R), 0, WGMMA))
        )
        if sink_ref:
            sink = plgpu.load(sink_ref[0].at[head], layout=PER_COLUMN, optimized=False)
            new_highest = jnp.maximum(highest, sink)
            decay = jnp.exp2(highest - new_highest)
            total = total * decay + jnp.exp2(sink - new_highest)
            acc = acc * across(decay, (H, R), 1)
        out = acc / across(jnp.where(total == 0, 1.0, total), (H, R), 1)
        out_smem.transpose((1, 0))[...] = out.astype(dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem.at[pl.ds(0, group)], out_ref.at[seq, head])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body, out_type=jax.ShapeDtypeStruct((B, K, group, H), dtype),
        scratch_types=(plgpu.SMEM((R, H), dtype),),
        grid=(K, B), grid_names=("head", "seq"), kernel_name="combine_splits",
        compiler_params=plgpu.CompilerParams(approx_math=True), interpret=interpret,
    )(parts, lse, first, count, *given)
