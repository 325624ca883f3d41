"""Every variant of the Hopper kernels with the tuned sizes, compiled for an H200: what it takes, and its floor."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import h200
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.ragged_paged_attention import AttentionMetadata, KVLayer, kv_layer_spec, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import Case
from pallas_kernels.ragged_paged_attention.gpu_tuning import tiles_for

BYTES_PER_SECOND, FLOPS_PER_SECOND = 4.3e12, 790e12      # measured on an H200: device copy, large bfloat16 matmul


@dataclass(frozen=True)
class Variant:
    case: Case
    spills: int = 0      # bytes that are known and allowed


DECODE = Case("decode", ((4096, 1),) * 32, num_heads=32, num_kv_heads=8, head_dim=128, max_blocks=256,
              dtype=jnp.bfloat16, max_q_len=1)
PREFILL = replace(DECODE, name="prefill", seqs=((4096, 4096),), max_q_len=None)


def variants(full: bool) -> Iterator[Variant]:
    """A few that models use most; with `full`, every head width, block size and feature."""
    yield Variant(DECODE)
    yield Variant(PREFILL)
    yield Variant(replace(DECODE, name="decode fp8", kv_dtype=jnp.float8_e4m3fn))
    if not full:
        return
    for case in (DECODE, PREFILL):
        for head_dim in (64, 256):
            yield Variant(replace(case, name=f"{case.name} H={head_dim}", head_dim=head_dim))
        for block_size in (32, 64):
            yield Variant(replace(case, name=f"{case.name} C={block_size}", block_size=block_size, max_blocks=128))
        for heads in (8, 40, 64):
            yield Variant(replace(case, name=f"{case.name} G={heads // 8}", num_heads=heads))
        yield Variant(replace(case, name=f"{case.name} f16", dtype=jnp.float16))
        for kv_dtype in (jnp.float8_e4m3fn, jnp.int8):
            for head_dim in (64, 128, 256):
                name = f"{case.name} H={head_dim} {jnp.dtype(kv_dtype).name}"
                spills = 128 if case is PREFILL and head_dim == 256 else 0
                yield Variant(replace(case, name=name, head_dim=head_dim, kv_dtype=kv_dtype), spills)
        yield Variant(replace(case, name=f"{case.name} window", sliding_window=1024))
        yield Variant(replace(case, name=f"{case.name} softcap window sinks", softcap=30.0, sliding_window=1024,
                              sinks=True))
        yield Variant(replace(case, name=f"{case.name} H=256 window", head_dim=256, num_heads=16, sliding_window=1024),
                      spills=4 if case is PREFILL else 0)


def arguments(case: Case, sharding: Any) -> tuple[Any, dict[str, Any]]:
    """A case's arrays as shapes, and its options. The op is compiled, not run, so no array is made."""
    T, B = sum(q for _, q in case.seqs), len(case.seqs)
    N, K, H = case.num_heads, case.num_kv_heads, case.head_dim

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    kv = kv_layer_spec(B * case.max_blocks + 1, case.block_size, K, H, case.kv_dtype or case.dtype)
    metadata = AttentionMetadata(
        *(array(shape, jnp.int32) for shape in ((T,), (B, case.max_blocks), (B,), (B + 1,), ()))
    )
    arrays = (
        array((T, N, H), case.dtype), array((T, K, H), case.dtype), array((T, K, H), case.dtype),
        KVLayer(**{name: array(shape, dtype) for name, (shape, dtype, _) in kv.items()}), metadata,
    )
    options = {
        "scale": H**-0.5, "sliding_window": case.sliding_window, "softcap": case.softcap, "max_q_len": case.max_q_len,
    }
    return (arrays, array((N,), jnp.float32) if case.sinks else None), options


def compile_variant(variant: Variant, mesh: jax.sharding.Mesh) -> tuple[list[h200.Machine], Any]:
    (arrays, sinks), options = arguments(variant.case, NamedSharding(mesh, PartitionSpec()))
    op = functools.partial(ragged_paged_attention, backend="pallas_gpu", **options)
    with h200.dumped() as folder, jax.set_mesh(mesh):
        step = jax.jit(lambda *args, sinks: op(*args, sinks=sinks), donate_argnums=3)
        compiled = step.lower(*arrays, sinks=sinks).compile()
        return h200.machines(folder), compiled.memory_analysis()


def floor(case: Case) -> tuple[int, int, float]:
    """-> (bytes of keys and values read once, FLOPs of the dots, seconds that the larger of the two takes)."""
    window = case.sliding_window or max(n for n, _ in case.seqs)
    read = sum(min(n, window + q - 1) for n, q in case.seqs)
    itemsize = jnp.dtype(case.kv_dtype or case.dtype).itemsize
    num_bytes = 2 * read * case.num_kv_heads * case.head_dim * itemsize
    pairs = sum(min(position + 1, window) for n, q in case.seqs for position in range(n - q, n))
    flops = 4 * pairs * case.num_heads * case.head_dim
    return num_bytes, flops, max(num_bytes / BYTES_PER_SECOND, flops / FLOPS_PER_SECOND)


def problems(variant: Variant, kernels: list[h200.Machine], memory: Any) -> list[str]:
    """What is not as it should be."""
    case, found = variant.case, []
    names = {"decode_attention", "combine_splits"} | (set() if case.max_q_len == 1 else {"prefill_attention"})
    if {kernel.name for kernel in kernels} != names:
        found.append(f"kernels {sorted(kernel.name for kernel in kernels)}")
    for kernel in kernels:
        found += crowded(case, kernel)
        if kernel.spill_bytes > variant.spills:
            found.append(f"{kernel.name} spills {kernel.spill_bytes} bytes")
        if kernel.smem_bytes > h200.SMEM_LIMIT:
            found.append(f"{kernel.name} takes {kernel.smem_bytes} bytes of shared memory")
        if kernel.name != "combine_splits" and not (kernel.wgmma and kernel.tensor_copies):
            found.append(f"{kernel.name} has {kernel.wgmma} wgmma and {kernel.tensor_copies} tensor copies")
    itemsize = jnp.dtype(case.kv_dtype or case.dtype).itemsize
    pool = 2 * (len(case.seqs) * case.max_blocks + 1) * case.block_size * case.num_kv_heads * case.head_dim * itemsize
    if memory.alias_size_in_bytes < pool:
        found.append(f"{memory.alias_size_in_bytes} of the pool's {pool} bytes are updated in place")
    if memory.temp_size_in_bytes > max(pool / 2, 1 << 27):
        found.append(f"{memory.temp_size_in_bytes} bytes of temporaries beside a pool of {pool}")
    return found


def crowded(case: Case, kernel: h200.Machine) -> list[str]:
    """Whether a multiprocessor holds as many blocks of threads as the tuned sizes mean it to."""
    tiles = tiles_for(case.head_dim, case.kv_dtype or case.dtype)
    if kernel.name == "decode_attention":
        ctas, threads = tiles.decode.ctas, 256
    elif kernel.name == "prefill_attention":
        ctas, threads = tiles.prefill.ctas, 128 * (tiles.prefill.warpgroups + 1)
    else:
        return []
    together = -(-ctas // h200.MULTIPROCESSORS)
    registers = together * threads * (-(-kernel.registers // 8) * 8)
    smem = together * (kernel.smem_bytes + 1024)
    if registers > 65_536 or smem > h200.SMEM_PER_MULTIPROCESSOR:
        return [f"{together} {kernel.name} on a multiprocessor take {registers} registers and {smem} bytes"]
    return []
