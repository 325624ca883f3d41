"""The tuned sizes: present for all that the Hopper kernels serve, and within a multiprocessor's shared memory."""

import jax
import jax.numpy as jnp
import pytest

if jax.__version_info__ < (0, 11):
    pytest.skip("jax before 0.11 has no such kernels", allow_module_level=True)

from pallas_kernels.ragged_paged_attention.gpu_common import SMEM_LIMIT
from pallas_kernels.ragged_paged_attention.gpu_support import BLOCK_SIZES, HEAD_DIMS
from pallas_kernels.ragged_paged_attention.gpu_tuning import tiles_for
from pallas_kernels.ragged_paged_attention.tune import KV_DTYPES, decode_tiles, prefill_tiles, tile_bytes


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=lambda dtype: jnp.dtype(dtype).name)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_tuned_sizes_fit(head_dim, kv_dtype):
    tiles = tiles_for(head_dim, kv_dtype)
    for tile in (tiles.decode, tiles.prefill):
        assert tile.ctas // 132 * tile_bytes(tile, head_dim, kv_dtype) <= SMEM_LIMIT
        assert all(tile.kv_tile % block_size == 0 for block_size in BLOCK_SIZES)
    assert tiles.decode.split % tiles.decode.kv_tile == 0
    assert tiles.decode in decode_tiles(head_dim, kv_dtype)
    assert tiles.prefill in prefill_tiles(head_dim, kv_dtype)


def test_an_unknown_device_uses_the_h200s_sizes():
    assert tiles_for(128, jnp.bfloat16, "NVIDIA H100 80GB HBM3") == tiles_for(128, jnp.bfloat16, "NVIDIA H200")
