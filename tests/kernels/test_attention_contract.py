"""What holds around the arithmetic: back-end names, refusals, the pool's layout, updates in place, meshes."""

import functools
import os
import re
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.backend import resolve_backend
from pallas_kernels.ragged_paged_attention import kv_layer_spec, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import DECODE, MIXED, build

SERVED = {"head_dim": 64, "block_size": 16, "dtype": jnp.bfloat16}


@pytest.mark.parametrize("platform", ["cpu", "rocm"])
def test_auto_is_xla_without_a_kernel_and_says_why(platform):
    name, reason = resolve_backend("auto", platform=platform, **SERVED)
    assert name == "xla"
    assert platform in reason


@pytest.mark.parametrize("name", ["xla", "reference"])
def test_a_name_is_kept(name):
    assert resolve_backend(name, platform="cpu", **SERVED)[0] == name


HOPPER = {"platform": "gpu", "compute_capability": "9.0", "query_dtype": jnp.bfloat16, "group": 4}
needs_recent_jax = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the Hopper kernels need jax 0.11")


@needs_recent_jax
@pytest.mark.parametrize("name", ["auto", "pallas_gpu"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_hopper_has_a_kernel(name, head_dim, block_size):
    chosen, _ = resolve_backend(name, head_dim=head_dim, block_size=block_size, dtype=jnp.bfloat16, **HOPPER)
    assert chosen == "pallas_gpu"


@needs_recent_jax
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"platform": "cpu"}, "the platform is cpu"),
        ({"compute_capability": "8.0"}, "compute capability is 8.0"),
        ({"head_dim": 80}, r"head_dim=80 is not one of \(64, 128, 256\)"),
        ({"block_size": 8}, r"block_size=8 is not one of \(16, 32, 64\)"),
        ({"dtype": jnp.float32}, "the KV pool's float32"),
        ({"query_dtype": jnp.float32}, "the model's float32"),
        ({"query_dtype": jnp.float16}, "float16 is not the KV pool's bfloat16"),
        ({"group": 17}, "17 query heads share a KV head, more than 16"),
    ],
)
def test_what_the_hopper_kernels_cannot_serve_is_refused_by_name_and_told_by_auto(change, reason):
    need = SERVED | HOPPER | change
    with pytest.raises(ValueError, match=f"pallas_gpu.*{reason}.*use 'auto' or 'xla'"):
        resolve_backend("pallas_gpu", **need)
    name, told = resolve_backend("auto", **need)
    assert name == "xla"
    assert need["platform"] == "cpu" or re.search(reason, told)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
def test_a_tpu_has_a_kernel(dtype):
    assert resolve_backend("auto", platform="tpu", **SERVED | {"dtype": dtype})[0] == "pallas_tpu"


def test_the_tpu_kernel_is_refused_elsewhere():
    with pytest.raises(ValueError, match=r"pallas_tpu.*the platform is cpu"):
        resolve_backend("pallas_tpu", platform="cpu", **SERVED)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"flash.*choose one of auto, xla"):
        resolve_backend("flash", platform="cpu", **SERVED)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
def test_quantised_pools_have_scales(dtype):
    spec = kv_layer_spec(10, 16, 2, 64, dtype)
    assert spec["k"][0] == (10, 2, 16 * 64)
    assert spec["k_scale"][:2] == ((10, 2, 16), jnp.float32)
    assert set(kv_layer_spec(10, 16, 2, 64, jnp.bfloat16)) == {"k", "v"}


@pytest.fixture(scope="module")
def decode():
    return build(DECODE)


def call(inputs, **changes):
    arguments = inputs._asdict() | changes
    arrays = (arguments[name] for name in ("q", "k", "v", "kv", "metadata"))
    return ragged_paged_attention(*arrays, **inputs.options | arguments.get("more", {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: {"q": i.q[:, :3]}, "q has 3 heads, not a multiple"),
        (lambda i: {"v": i.v[:, :1]}, "must both be"),
        (lambda i: {"kv": replace(i.kv, v=i.kv.v[..., :-64])}, "the pool's v"),
        (lambda i: {"kv": replace(i.kv, k=i.kv.k.astype(jnp.int8))}, "int8 pool needs scales"),
        (lambda i: {"metadata": replace(i.metadata, kv_lens=i.metadata.kv_lens[1:])}, "kv_lens"),
        (lambda i: {"more": {"sinks": jnp.zeros(3)}}, "sinks"),
        (lambda i: {"more": {"max_q_len": 2}}, "max_q_len=2 for 5 sequences needs 10 tokens"),
        (lambda i: {"more": {"backend": "mps"}}, "backend='mps' is not one of reference, xla"),
    ],
)
def test_wrong_shapes_and_names_are_refused(decode, change, message):
    with pytest.raises(ValueError, match=message):
        call(decode, **change(decode))


@pytest.mark.parametrize(
    ("case", "kv_dtype"),
    [(DECODE, jnp.bfloat16), *((MIXED, dtype) for dtype in (jnp.float32, jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn))],
)
def test_pool_is_updated_in_place(case, kv_dtype):
    """Through loops and branches: every byte of a donated pool is aliased, and nothing as large is made."""
    inputs = build(replace(case, kv_dtype=kv_dtype))
    pool = jax.tree.map(lambda x: jax.ShapeDtypeStruct((5000, *x.shape[1:]), x.dtype), inputs.kv)
    step = jax.jit(functools.partial(ragged_paged_attention, **inputs.options), donate_argnums=3)
    memory = step.lower(inputs.q, inputs.k, inputs.v, pool, inputs.metadata).compile().memory_analysis()
    pool_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pool))
    assert memory.alias_size_in_bytes == pool_bytes
    assert memory.temp_size_in_bytes < pool_bytes / 10


ON_TWO_DEVICES = """
import functools, json
import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import DECODE, MIXED, build

mesh = jax.make_mesh((2,), ("kv",), axis_types=(jax.sharding.AxisType.Explicit,))
for case in (DECODE, MIXED):
    inputs = build(case)
    op = functools.partial(ragged_paged_attention, **inputs.options)
    arrays = inputs[:5]
    out, pool = jax.jit(op)(*arrays)
    heads = P(None, "kv")
    pools = jax.tree.map(lambda _: heads, inputs.kv)
    with jax.set_mesh(mesh):
        split = jax.shard_map(
            op, in_specs=(heads, heads, heads, pools, jax.tree.map(lambda _: P(), inputs.metadata)),
            out_specs=(heads, pools), check_vma=False,
        )
        placed = jax.device_put(arrays[:4], jax.tree.map(lambda _: jax.NamedSharding(mesh, heads), arrays[:4]))
        split_out, split_pool = jax.jit(split)(*placed, inputs.metadata)
    assert len(split_out.sharding.device_set) == 2
    np.testing.assert_allclose(split_out, out, rtol=0, atol=1e-6)
    for a, b in zip(jax.tree.leaves(split_pool), jax.tree.leaves(pool), strict=True):
        np.testing.assert_array_equal(np.asarray(a)[1:], np.asarray(b)[1:])
print("same")
"""


def test_two_devices_give_the_result_of_one():
    """Each device holds one KV head, its query heads and its part of the pool."""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ON_TWO_DEVICES]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "same\n"
