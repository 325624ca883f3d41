"""What is compiled for TPUs: chips, shapes and dtypes, and one variant's compilation."""

import functools
import math
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.ragged_paged_attention import AttentionMetadata, KVLayer, kv_layer_spec, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.tpu import VMEM_LIMIT, plan
from pallas_kernels.ragged_paged_attention.tpu_shape import vmem_bytes

TOPOLOGIES = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}
POOLS = {"bfloat16": jnp.bfloat16, "int8": jnp.int8, "fp8_e4m3": jnp.float8_e4m3fn, "float32": jnp.float32}
NUM_BLOCKS, MAX_BLOCKS = 4096, 256      # of the pool, and of a sequence
NUM_SEQS, TOKENS = 64, 1024             # of a step; a decode step has as many tokens as sequences


@dataclass(frozen=True)
class Variant:
    """One call of the op. Heads are those of all `chips` together."""

    chip: str
    head_dim: int
    block_size: int
    pool: str
    decode: bool
    num_heads: int = 32
    num_kv_heads: int = 8
    chips: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        extras = "".join(f" {key}={value}" for key, value in self.options.items())
        extras += f" {self.chips} chips" if self.chips > 1 else ""
        return (f"{self.chip} H{self.head_dim} block {self.block_size} {self.pool} "
                f"{self.num_heads}/{self.num_kv_heads} {'decode' if self.decode else 'mixed'}{extras}")


def _variants() -> list[Variant]:
    """Every head width, block size and pool as a mixed batch, which holds the decode kernel too; fewer decodes."""
    found = []
    for chip in TOPOLOGIES:
        for head_dim in (64, 128, 256):
            for pool in ("bfloat16", "int8", "fp8_e4m3"):
                found += [Variant(chip, head_dim, block_size, pool, decode=False) for block_size in (16, 32, 64)]
                found.append(Variant(chip, head_dim, 16, pool, decode=True))
        every = {"sliding_window": 1000, "softcap": 30.0, "sinks": True}
        found += [
            Variant(chip, 128, 16, "bfloat16", decode=False, options=every),
            Variant(chip, 64, 16, "bfloat16", decode=False, num_heads=9, num_kv_heads=3, options=every),
            Variant(chip, 64, 64, "int8", decode=False, num_heads=16, num_kv_heads=16, options=every),
            Variant(chip, 128, 16, "int8", decode=True, num_heads=32, num_kv_heads=32),
            Variant(chip, 256, 16, "float32", decode=False, num_heads=4, num_kv_heads=1),
            Variant(chip, 128, 16, "bfloat16", decode=False, chips=4),
            Variant(chip, 128, 32, "int8", decode=True, chips=4),
        ]
    return found


VARIANTS = _variants()


def compile_variant(variant: Variant) -> dict[str, Any]:
    """-> {"ok", "seconds", "vmem", "pool", "aliased", "temp" (MiB), "remark"}: what the compiler says."""
    start = time.perf_counter()
    try:
        compiled, pool_bytes = _compile(variant)
    except (ValueError, NotImplementedError, RuntimeError) as error:       # what jax and libtpu raise for a kernel
        seconds = time.perf_counter() - start
        return {"ok": False, "seconds": round(seconds, 1), "remark": " ".join(str(error).split())[:300]}
    memory, vmem = compiled.memory_analysis(), _vmem(variant)
    remarks = []
    if memory.alias_size_in_bytes < pool_bytes or memory.temp_size_in_bytes > pool_bytes / 4:
        remarks.append("the pool is copied")
    if vmem > VMEM_LIMIT:
        remarks.append(f"more VMEM than {VMEM_LIMIT >> 20} MiB")
    text = compiled.as_text()
    remarks += [f"an unwanted {name}" for name in ("all-reduce", "all-gather", "all-to-all", "permute") if name in text]
    mib = {"vmem": vmem, "pool": pool_bytes, "aliased": memory.alias_size_in_bytes, "temp": memory.temp_size_in_bytes}
    return {
        "ok": not remarks, "seconds": round(time.perf_counter() - start, 1), "remark": "; ".join(remarks),
    } | {name: round(size / (1 << 20), 1) for name, size in mib.items()}


def _compile(variant: Variant) -> tuple[Any, int]:
    """The compiled step of one device, and its pool's bytes."""
    v = variant
    devices = topologies.get_topology_desc(TOPOLOGIES[v.chip], platform="tpu").devices[: v.chips]
    mesh = Mesh(np.array(devices), ("heads",), axis_types=(AxisType.Explicit,))
    everywhere, heads = PartitionSpec(), PartitionSpec(None, "heads")

    def array(shape: tuple[int, ...], dtype: Any, where: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, where))

    tokens = NUM_SEQS if v.decode else TOKENS
    dtype = jnp.float32 if v.pool == "float32" else jnp.bfloat16
    spec = kv_layer_spec(NUM_BLOCKS, v.block_size, v.num_kv_heads, v.head_dim, POOLS[v.pool], "pallas_tpu")
    kv = KVLayer(**{name: array(shape, kind, heads) for name, (shape, kind, _) in spec.items()})
    metadata = AttentionMetadata(*(
        array(shape, jnp.int32, everywhere)
        for shape in ((tokens,), (NUM_SEQS, MAX_BLOCKS), (NUM_SEQS,), (NUM_SEQS + 1,), ())
    ))
    q, k = ((array((tokens, n, v.head_dim), dtype, heads)) for n in (v.num_heads, v.num_kv_heads))
    options = {"scale": v.head_dim**-0.5, "max_q_len": 1 if v.decode else None} | v.options
    sinks = [array((v.num_heads,), jnp.float32, PartitionSpec("heads"))] if options.pop("sinks", False) else []
    op = functools.partial(ragged_paged_attention, backend="pallas_tpu", **options)

    def step(q, k, v, kv, metadata, *sinks):
        return op(q, k, v, kv, metadata, sinks=sinks[0] if sinks else None)

    arguments = (q, k, k, kv, metadata, *sinks)
    specs = jax.tree.map(lambda x: x.sharding.spec, arguments)
    with jax.set_mesh(mesh):
        local = jax.shard_map(step, in_specs=specs, out_specs=(heads, specs[3]), check_vma=False)
        compiled = jax.jit(local, donate_argnums=3).lower(*arguments).compile()
    return compiled, sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(kv)) // v.chips


def _vmem(variant: Variant) -> int:
    """Bytes of the larger of the call's two kernels."""
    v = variant
    dtype = jnp.float32 if v.pool == "float32" else jnp.bfloat16
    shapes = plan(
        TOKENS, v.num_heads // v.chips, v.num_kv_heads // v.chips, v.head_dim, v.block_size, MAX_BLOCKS, dtype,
        POOLS[v.pool], max_q_len=1 if v.decode else None,
    )
    return max(vmem_bytes(shape) for shape in shapes)
