"""The attention op by itself: its back ends over the shapes of decode and prefill steps, beside the machine's floor.

A step is `--layers` calls with a KV pool each, and each call needs the result of the one before, as in a model: calls
that do not depend on one another run at once on a CPU and thrash its caches. The floor reads every visible key and
value once a layer, or does the dots' arithmetic at the rate of a large matmul, whichever takes longer.

  jaxengine bench kernel
  jaxengine bench kernel --device gpu         the shapes of a large GPU, beside XLA's form and PyTorch's
  jaxengine bench kernel --num-heads 4 --num-kv-heads 1 --head-dim 256 --layers 18 --backends xla,reference
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.bench.chip.attention import DECODES, PREFILLS
from jaxengine.bench.chip.attention import measure as chip_attention
from jaxengine.bench.chip.rates import measure_rates
from jaxengine.bench.floor import matmul_rate, read_bandwidth
from jaxengine.bench.options import add_report_arguments, repeats
from jaxengine.bench.report import Report, finish
from jaxengine.bench.step import check_device
from jaxengine.bench.timing import alternate, median, spread
from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.api import BACKENDS
from pallas_kernels.ragged_paged_attention.cases import DECODE_STEPS, MIXED_STEPS, Case, Inputs, build

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
KV_DTYPES = DTYPES | {"int8": jnp.int8, "fp8_e4m3": jnp.float8_e4m3fn}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser, repeats=15)
    group = parser.add_argument_group("shapes")
    for flag, default, text in (
        ("--num-heads", 9, "query heads"), ("--num-kv-heads", 3, "KV heads"), ("--head-dim", 64, "head width"),
        ("--layers", 30, "calls in a step"), ("--block-size", 16, "tokens of a block"),
        ("--max-model-len", 4096, "tokens that a block table has room for"),
    ):
        group.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} [{default}]")
    group.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of queries, keys and values [bfloat16]")
    group.add_argument("--kv-cache-dtype", choices=KV_DTYPES, help="of the pool [--dtype]")
    group.add_argument("--backends", default="xla", metavar="NAME,...", help=f"of {', '.join(BACKENDS)} [xla]")
    group.add_argument("--device", choices=("any", "gpu"), default="any", help="gpu: its own shapes [any]")
    group.add_argument("--only", metavar="TEXT", help="shapes whose name contains this")


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    """Raises ValueError for an unknown back end and for a --only that no shape has."""
    if args.device == "gpu":
        return _on_gpu(args)
    backends = args.backends.split(",")
    if unknown := set(backends) - set(BACKENDS):
        known = ", ".join(BACKENDS)
        raise ValueError(f"--backends {args.backends}: {', '.join(sorted(unknown))} is unknown; known: {known}")
    cases = [_shaped(case, args) for case in DECODE_STEPS + MIXED_STEPS if (args.only or "") in case.name]
    if not cases:
        names = ", ".join(case.name for case in DECODE_STEPS + MIXED_STEPS)
        raise ValueError(f"--only {args.only!r} names no shape; known: {names}")
    if args.short and not args.only:
        cases = cases[::3]
    read, rate = read_bandwidth(), matmul_rate(256, (1536, 576), DTYPES[args.dtype])
    rows = [row for case in cases for row in _measure(case, backends, args, read, rate)]
    facts = {
        "heads": f"{args.num_heads} of width {args.head_dim}, {args.num_kv_heads} KV heads",
        "dtype": args.dtype, "kv_cache_dtype": args.kv_cache_dtype or args.dtype, "layers": args.layers,
        "block_size": args.block_size, "repeats": repeats(args),
        "read GB/s": read / 1e9, "matmul GFLOP/s": rate / 1e9,
    }
    return Report("kernel", rows, facts)


def _on_gpu(args: argparse.Namespace) -> Report:
    check_device(args.device)
    rates = measure_rates()
    shapes = tuple(shape for shape in DECODES + PREFILLS if (args.only or "") in str(shape))
    rows = list(chip_attention(shapes, rates, "pallas_gpu", peers=not args.short, tiny=False))
    return Report("kernel", rows, {"copy TB/s": rates.copy / 1e12, "matmul TFLOP/s": rates.matmul / 1e12})


def _shaped(case: Case, args: argparse.Namespace) -> Case:
    return replace(
        case, num_heads=args.num_heads, num_kv_heads=args.num_kv_heads, head_dim=args.head_dim,
        block_size=args.block_size, max_blocks=-(-args.max_model_len // args.block_size),
        dtype=DTYPES[args.dtype], kv_dtype=KV_DTYPES[args.kv_cache_dtype] if args.kv_cache_dtype else None,
    )


def _measure(
    case: Case, backends: list[str], args: argparse.Namespace, read: float, rate: float
) -> list[dict[str, Any]]:
    """read: bytes a second. rate: floating-point operations a second."""
    inputs = build(case)
    steps = {name: _step(inputs, name, args.layers) for name in backends}
    seconds = alternate(steps, repeats(args))
    in_bytes, in_flops = kv_bytes(inputs) * args.layers / read, dot_flops(case) * args.layers / rate
    floor = max(in_bytes, in_flops)
    return [
        {
            "shape": case.name, "back end": name, "ms": median(times) * 1e3, "best ms": min(times) * 1e3,
            "spread": spread(times), "floor ms": floor * 1e3, "bound": "read" if in_bytes > in_flops else "matmul",
            "times floor": median(times) / floor,
        }
        for name, times in seconds.items()
    ]


def _step(inputs: Inputs, backend: str, layers: int) -> Callable[[], float]:
    """A call that runs one step and returns its seconds."""

    def chain(pools, q, k, v, metadata):
        x, written = q, []
        for pool in pools:
            out, pool = ragged_paged_attention(x, k, v, pool, metadata, backend=backend, **inputs.options)
            written.append(pool)
            x = (q + out / 2).astype(q.dtype)
            k = k + x[:, : k.shape[1]] / 64      # keys need the layer before, too
        return x, written

    pools = [jax.tree.map(jnp.copy, inputs.kv) for _ in range(layers)]
    arrays = (inputs.q, inputs.k, inputs.v, inputs.metadata)
    compiled = jax.jit(chain, donate_argnums=0).lower(pools, *arrays).compile()

    def once() -> float:
        nonlocal pools
        start = time.perf_counter()
        out, pools = compiled(pools, *arrays)
        out.block_until_ready()
        return time.perf_counter() - start

    return once


def kv_bytes(inputs: Inputs) -> int:
    """Bytes of the keys and values, scales included, that a call must read."""
    slots = inputs.kv.k.size // inputs.q.shape[-1] // inputs.kv.k.shape[1]
    pool_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(inputs.kv))
    return pool_bytes * int(inputs.metadata.kv_lens.sum()) // slots


def dot_flops(case: Case) -> int:
    """Operations of q.k and of weights times values over the visible keys of every query."""
    pairs = sum(q * kv_len - q * (q - 1) // 2 for kv_len, q in case.seqs)
    return 4 * pairs * case.num_heads * case.head_dim
