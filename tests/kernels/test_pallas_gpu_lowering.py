"""The Hopper kernels lower for CUDA without a GPU or a plugin, with the tuned sizes; and what they are told to do."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import DECODE, MIXED, build

if jax.__version_info__ < (0, 11):
    pytest.skip("jax before 0.11 has no such kernels", allow_module_level=True)

from pallas_kernels.ragged_paged_attention.gpu_work import tile_table, work_table


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "case",
    [
        replace(DECODE, head_dim=128, dtype=jnp.bfloat16),
        replace(DECODE, name="decode-fp8", dtype=jnp.bfloat16, kv_dtype=jnp.float8_e4m3fn),
        replace(MIXED, head_dim=128, dtype=jnp.float16),
        replace(MIXED, name="mixed-int8-window-sinks", dtype=jnp.bfloat16, kv_dtype=jnp.int8, sliding_window=50,
                softcap=5.0, sinks=True),
    ],
    ids=lambda case: case.name,
)
def test_lowers_for_cuda(case):
    inputs = build(case)
    op = functools.partial(ragged_paged_attention, backend="pallas_gpu", **inputs.options)
    text = jax.jit(op).trace(*inputs[:5]).lower(lowering_platforms=("cuda",)).as_text()
    kernels = 2 if case.max_q_len == 1 else 3      # decode and combine; prefill where there can be prompts
    assert text.count("custom_call @mosaic_gpu_v2") == kernels


def test_work_table_lists_the_splits_from_position_0():
    starts, stops = jnp.array([0, 0, 100, 5], jnp.int32), jnp.array([130, 0, 200, 64], jnp.int32)
    work = work_table(starts, stops, split=64, max_splits=4)
    total = int(work.total[0])
    assert np.asarray(work.items[:total]).tolist() == [
        [0, 0, 64], [0, 64, 128], [0, 128, 130], [2, 100, 128], [2, 128, 192], [2, 192, 200], [3, 5, 64],
    ]
    assert work.first.tolist() == [0, 3, 3, 6]
    assert work.count.tolist() == [3, 0, 3, 1]


def test_tile_table_covers_every_prefill_token_once_longest_first():
    cu, kv_lens = jnp.array([0, 1, 2, 42, 45, 45], jnp.int32), jnp.array([9, 300, 140, 3, 0], jnp.int32)
    work = tile_table(cu, kv_lens, jnp.int32(2), 50, tokens=16, kv_tile=64, sliding_window=None)
    items = np.asarray(work.items[: int(work.total[0])]).tolist()
    # sequence, load, start, stop, position of `load`, first and last KV tile, KV length
    assert items == [
        [2, 18, 18, 34, 116, 0, 3, 140], [2, 34, 34, 42, 132, 0, 3, 140], [2, 2, 2, 18, 100, 0, 2, 140],
        [3, 34, 42, 45, -8, 0, 1, 3],
    ]


def test_tile_table_skips_what_a_window_hides():
    cu, kv_lens = jnp.array([0, 16], jnp.int32), jnp.array([216], jnp.int32)
    work = tile_table(cu, kv_lens, jnp.int32(0), 16, tokens=16, kv_tile=64, sliding_window=30)
    assert np.asarray(work.items[0]).tolist() == [0, 0, 0, 16, 200, 2, 4, 216]      # from position 171 on
