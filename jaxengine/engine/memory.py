"""How many KV blocks fit, and why: the memory plan that `jaxengine info` prints."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxengine.arrays import KVPool
from jaxengine.config import EngineConfig
from pallas_kernels.ragged_paged_attention import KVLayer, kv_layer_spec
from sharding import DATA, spec

CPU_POOL_BYTES = 1 << 30      # a laptop's default: about 44,000 tokens of SmolLM2-135M

KV_DTYPES = {
    "float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16,
    "fp8_e4m3": jnp.float8_e4m3fn, "int8": jnp.int8,
}


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of the weights and of the KV pool, and how the pool's size was reckoned. All are those of one
    data-parallel shard, whose devices share them; every shard has as much."""

    weight_bytes: int
    block_bytes: int
    block_size: int
    num_blocks: int
    kv_cache_dtype: str
    reckoned: str
    num_shards: int = 1

    @property
    def pool_bytes(self) -> int:
        return self.block_bytes * self.num_blocks

    @property
    def pool_tokens(self) -> int:
        return (self.num_blocks - 1) * self.block_size      # block 0 is the null block

    def __str__(self) -> str:
        return (
            f"weights   {self.weight_bytes / 1e6:10.1f} MB\n"
            f"KV pool   {self.pool_bytes / 1e6:10.1f} MB  {self.num_blocks} blocks of {self.block_size} tokens: "
            f"{self.pool_tokens} tokens, {self.kv_cache_dtype}, "
            f"{self.block_bytes / self.block_size / 1e3:.1f} kB a token\n"
            f"reckoned  {self.reckoned}"
            + (f"\nshards    {self.num_shards} of this size" if self.num_shards > 1 else "")
        )


def kv_dtype_of(config: EngineConfig, dtype: Any) -> Any:
    """The pool's dtype for a model that computes in `dtype`."""
    return dtype if config.cache.kv_cache_dtype == "auto" else KV_DTYPES[config.cache.kv_cache_dtype]


def plan_memory(
    cfg: Any, params: Any, config: EngineConfig, max_model_len: int, dtype: Any, mesh: Mesh, backend: str
) -> MemoryPlan:
    """Sizes the back end's pool. Raises ValueError where not even one sequence of max_model_len tokens would fit."""
    kv_dtype = kv_dtype_of(config, dtype)
    block_size = config.cache.block_size
    layer = kv_layer_spec(1, block_size, cfg.num_kv_heads, cfg.head_dim, kv_dtype, backend)
    block_bytes = cfg.num_layers * sum(math.prod(shape) * np.dtype(d).itemsize for shape, d, _ in layer.values())
    weight_bytes = sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(params))
    num_blocks, reckoned = _count_blocks(config, block_bytes, block_size, _device_bytes(params), max_model_len, mesh)
    fits = (num_blocks - 1) * block_size
    if fits < min(max_model_len, 2):
        raise ValueError(
            f"the KV pool holds {fits} tokens ({reckoned}); raise kv_cache_memory_bytes or num_blocks"
        )
    return MemoryPlan(
        weight_bytes, block_bytes, block_size, num_blocks, np.dtype(kv_dtype).name, reckoned, mesh.shape[DATA]
    )


def _count_blocks(
    config: EngineConfig, block_bytes: int, block_size: int, weight_bytes: int, max_model_len: int, mesh: Mesh
) -> tuple[int, str]:
    """Blocks of one shard, and why. weight_bytes: on each device."""
    cache = config.cache
    if cache.num_blocks is not None:
        return cache.num_blocks, f"num_blocks={cache.num_blocks}"
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes // block_bytes, f"kv_cache_memory_bytes={cache.kv_cache_memory_bytes}"
    wanted = config.scheduler.max_num_seqs * math.ceil(max_model_len / block_size) + 1
    device = mesh.devices.flat[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    # Of a shard's devices, each has the KV heads of its place along the "kv" axis.
    here = block_bytes // mesh.shape["kv"]
    if stats:
        fits = (int(stats["bytes_limit"] * cache.gpu_memory_utilization) - weight_bytes) // here
        why = (f"gpu_memory_utilization={cache.gpu_memory_utilization} of {stats['bytes_limit'] / 1e9:.1f} GB "
               f"less {weight_bytes / 1e9:.2f} GB of weights")
    else:      # all devices share the host's memory
        fits = min(CPU_POOL_BYTES, _available_bytes() // 4) // (here * mesh.size)
        why = f"the host default of {CPU_POOL_BYTES >> 20} MiB, at most a quarter of the free memory"
    if wanted <= fits:
        return wanted, f"max_num_seqs={config.scheduler.max_num_seqs} sequences of max_model_len={max_model_len} tokens"
    return fits, why


def _device_bytes(params: Any) -> int:
    """Bytes of a tree of ShapeDtypeStructs that lie on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(params)
    )


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def abstract_pool(cfg: Any, plan: MemoryPlan, mesh: Mesh, backend: str) -> KVPool:
    """The pools of all shards, one after another, as ShapeDtypeStructs with shardings."""
    dtype = jnp.dtype(plan.kv_cache_dtype)
    num_blocks = mesh.shape[DATA] * plan.num_blocks
    layer = kv_layer_spec(num_blocks, plan.block_size, cfg.num_kv_heads, cfg.head_dim, dtype, backend)
    arrays: dict[str, Any] = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec(*axes)))
        for name, (shape, dtype, axes) in layer.items()
    }
    return KVPool(tuple(KVLayer(**arrays) for _ in range(cfg.num_layers)))


def allocate(abstract: Any) -> Any:
    """Zeros for a tree of ShapeDtypeStructs, each made on its own devices."""
    def zeros() -> Any:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, out_sharding=s.sharding), abstract)
    shardings = jax.tree.map(lambda s: s.sharding, abstract)
    return jax.jit(zeros, out_shardings=shardings)()
