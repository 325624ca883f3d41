"""The KV cache on its way through shared memory: a ring of tiles for the keys, and one for the values.

A producer warpgroup copies blocks in, ahead of the computing ones; two barriers for each slot of the ring say that it
is ready to be read and free to be filled. A quantised pool's tiles are widened to float16 before the tensor cores read
them, and their slot is free from then on.

Legend: P, K, C, H as in api.py · S tokens of a tile.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention.gpu_common import dequantize, swizzled, wait_if


@dataclass(frozen=True)
class Ring:
    """Static shapes of a ring; the methods run inside a kernel, on its `refs`: (pool, scales) and its scratch.

    readers: warpgroups that read each tile; one where the pool is quantised.
    """

    stages: int
    kv_tile: int
    block_size: int
    head_dim: int
    stored: Any                 # dtype of the pool
    quantized: bool
    readers: int = 1

    @property
    def blocks(self) -> int:
        return self.kv_tile // self.block_size

    def scratch(self) -> tuple[Any, ...]:
        """-> (slots, their scales, one widened tile, ready, free); scales and tile for a quantised pool only."""
        assert self.readers == 1 or not self.quantized
        S, H, half = self.kv_tile, self.head_dim, jnp.float16
        copies = self.blocks * (2 if self.quantized else 1)
        return (
            plgpu.SMEM((self.stages, S, H), self.stored, transforms=swizzled(self.stored, H)),
            plgpu.SMEM((self.stages, 1, S), jnp.float32) if self.quantized else None,
            plgpu.SMEM((S, H), half, transforms=swizzled(half, H)) if self.quantized else None,
            plgpu.Barrier(num_arrivals=copies, num_barriers=self.stages),
            plgpu.Barrier(num_arrivals=self.readers, num_barriers=self.stages),
        )

    def load(self, refs: Any, n: Any, blocks: list[Any], head: Any) -> None:
        """Producer: starts the copies of the n-th tile, made of these blocks of the pool."""
        (pool, scales), (slots, slot_scales, _, ready, free) = refs
        slot, C = lax.rem(n, self.stages), self.block_size
        wait_if(n >= self.stages, free.at[slot])
        for j, block in enumerate(blocks):
            place = pl.ds(j * C, C)
            plgpu.copy_gmem_to_smem(pool.at[block, head], slots.at[slot, place], ready.at[slot])
            if self.quantized:
                source = scales.at[block, pl.ds(head, 1)]
                plgpu.copy_gmem_to_smem(source, slot_scales.at[slot, :, place], ready.at[slot])

    def drain(self, refs: Any, n: Any) -> None:
        """Producer, after n tiles: awaits every arrival, so that none is left when the block of threads ends."""
        free = refs[1][4]
        lax.fori_loop(
            jnp.maximum(n - self.stages, 0), n, lambda i, _: plgpu.barrier_wait(free.at[lax.rem(i, self.stages)]), None
        )

    def take(self, refs: Any, n: Any, start: Any, stop: Any) -> Any:
        """Reader: awaits the n-th tile -> a reference [S, H]. A widened one has zeros in rows outside [start, stop)."""
        _, (slots, slot_scales, wide, ready, free) = refs
        slot = lax.rem(n, self.stages)
        plgpu.barrier_wait(ready.at[slot])
        if not self.quantized:
            return slots.at[slot]
        dequantize(slots.at[slot], slot_scales.at[slot, 0], wide, start, stop)
        plgpu.commit_smem()
        plgpu.barrier_arrive(free.at[slot])
        return wide

    def release(self, refs: Any, n: Any) -> None:
        """Reader: done with the n-th tile."""
        if not self.quantized:
            plgpu.barrier_arrive(refs[1][4].at[lax.rem(n, self.stages)])


def block_ids(tables: Any, seq: Any, tile: Any, blocks: int, last: Any) -> list[jax.Array]:
    """The pool's blocks of a sequence's KV tile; past the block `last` of the sequence that one stands in."""
    return [tables[seq, jnp.minimum(tile * blocks + j, last)] for j in range(blocks)]
