"""Finds the Hopper kernels' sizes by measuring them, and writes them as data.

  python -m pallas_kernels.ragged_paged_attention.tune             on a GPU: measures, and writes tuned/gpu_*.json
  python -m pallas_kernels.ragged_paged_attention.tune --tiny      a dry run on any machine, interpreted: writes nothing
"""

import argparse
import functools
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention import gpu
from pallas_kernels.ragged_paged_attention.cases import Case, Inputs, build
from pallas_kernels.ragged_paged_attention.gpu_common import SMEM_LIMIT
from pallas_kernels.ragged_paged_attention.gpu_decode import DecodeTile
from pallas_kernels.ragged_paged_attention.gpu_prefill import ROWS, PrefillTile
from pallas_kernels.ragged_paged_attention.gpu_support import HEAD_DIMS
from pallas_kernels.ragged_paged_attention.gpu_tuning import Tiles, tiles_for

FOLDER = Path(__file__).parent / "tuned"
KV_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.int8)
SPARE = 3 << 10                      # bytes of shared memory for barriers and for exchanges between warps
BASE = Case("step", (), num_heads=32, num_kv_heads=8, dtype=jnp.bfloat16)
DECODES = tuple(replace(BASE, name=f"decode {n} x {s}", seqs=((s, 1),) * n, max_q_len=1) for n, s in (
    (4, 8192), (32, 4096), (128, 1024),
))
PREFILLS = tuple(replace(BASE, name=f"prefill {s}", seqs=((s, s),)) for s in (1024, 4096))
TINY_DECODES = (replace(DECODES[0], seqs=((70, 1),), num_heads=4, num_kv_heads=2),)
TINY_PREFILLS = (replace(PREFILLS[0], seqs=((40, 40),), num_heads=4, num_kv_heads=2),)


def tile_bytes(tile: DecodeTile | PrefillTile, head_dim: int, kv_dtype: Any) -> int:
    """Shared memory of a kernel, a little more than it takes: the rings, and what the products read and leave."""
    itemsize = jnp.dtype(kv_dtype).itemsize
    widened = 2 * 2 * tile.kv_tile * head_dim if itemsize == 1 else 0
    rings = 2 * tile.stages * tile.kv_tile * (head_dim * itemsize + (4 if itemsize == 1 else 0)) + widened
    if isinstance(tile, DecodeTile):
        return rings + 2 * 16 * (2 * head_dim + tile.kv_tile) + SPARE
    return rings + 3 * 2 * tile.warpgroups * ROWS * head_dim + SPARE


def decode_tiles(head_dim: int, kv_dtype: Any) -> Iterator[DecodeTile]:
    """Those that fit, as many blocks of threads to a multiprocessor as `ctas` asks for."""
    for kv_tile, stages, split, per_sm in itertools.product((64, 128), (2, 3, 4), (256, 512, 1024), (1, 2, 3)):
        tile = DecodeTile(kv_tile, stages, split, 132 * per_sm)
        if per_sm * tile_bytes(tile, head_dim, kv_dtype) <= SMEM_LIMIT:
            yield tile


def prefill_tiles(head_dim: int, kv_dtype: Any) -> Iterator[PrefillTile]:
    """Those that fit; a wide head leaves registers for one computing warpgroup, and so does a quantised pool."""
    alone = head_dim == 256 or jnp.dtype(kv_dtype).itemsize == 1
    for kv_tile, stages, per_sm in itertools.product((64, 128), (1, 2, 3, 4), (1, 2)):
        tile = PrefillTile(kv_tile, stages, 1 if alone else 2, 132 * per_sm)
        if alone and kv_tile == 128:
            continue
        if per_sm * tile_bytes(tile, head_dim, kv_dtype) <= SMEM_LIMIT:
            yield tile


def seconds(inputs: Inputs, tiles: Tiles, calls: int, interpret: Any) -> float:
    """Of one call, the least of three loops of `calls` on the device."""
    op = functools.partial(gpu.ragged_paged_attention, tiles=tiles, interpret=interpret, **inputs.options)

    def step(_, state):      # each call needs the one before
        x, kv = state
        out, kv = op(x, inputs.k, inputs.v, kv, inputs.metadata)
        return (inputs.q + out / 64).astype(inputs.q.dtype), kv

    run = jax.jit(lambda state: lax.fori_loop(0, calls, step, state))
    state = jax.block_until_ready(run((inputs.q, inputs.kv)))
    best = float("inf")
    for _ in range(1 if interpret else 3):
        start = time.perf_counter()
        jax.block_until_ready(run(state))
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def best(cases: tuple[Case, ...], candidates: list[Tiles], calls: int, interpret: Any) -> Tiles:
    """The candidate with the least product of times over the cases."""
    scores = dict.fromkeys(candidates, 1.0)
    for case in cases:
        inputs = build(case)
        for tiles in candidates:
            scores[tiles] *= seconds(inputs, tiles, calls, interpret)
    return min(candidates, key=scores.__getitem__)


def tune(head_dim: int, kv_dtype: Any, tiny: bool, interpret: Any) -> Tiles:
    now = tiles_for(head_dim, kv_dtype)
    shape = {"head_dim": head_dim, "kv_dtype": kv_dtype} | ({"dtype": kv_dtype} if kv_dtype == jnp.float16 else {})
    decodes, prefills = (TINY_DECODES, TINY_PREFILLS) if tiny else (DECODES, PREFILLS)
    decode = [replace(now, decode=tile) for tile in decode_tiles(head_dim, kv_dtype)]
    prefill = [replace(now, prefill=tile) for tile in prefill_tiles(head_dim, kv_dtype)]
    if tiny:      # one candidate each, with two blocks of threads
        decode = [replace(t, decode=replace(t.decode, ctas=2)) for t in decode[:1]]
        prefill = [Tiles(decode[0].decode, replace(t.prefill, ctas=2)) for t in prefill[:1]]
    calls = 1 if tiny else 20
    found = best(tuple(replace(case, **shape) for case in decodes), decode, calls, interpret)
    return replace(found, prefill=best(tuple(replace(c, **shape) for c in prefills), prefill, calls, interpret).prefill)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a dry run, interpreted, of one head width")
    args = parser.parse_args()
    interpret, widths, kinds = None, HEAD_DIMS, KV_DTYPES
    if args.tiny:
        interpret, widths, kinds = plgpu.InterpretGPUParams(), (64,), (jnp.bfloat16,)
    tuned = {}
    for kv_dtype, head_dim in itertools.product(kinds, widths):
        tiles = tune(head_dim, kv_dtype, args.tiny, interpret)
        tuned[f"H={head_dim} {jnp.dtype(kv_dtype).name}"] = asdict(tiles)
        print(head_dim, jnp.dtype(kv_dtype).name, tiles, flush=True)
    if not args.tiny:
        kind = jax.devices()[0].device_kind
        path = FOLDER / f"gpu_{kind.split()[-1].lower()}.json"
        path.write_text(json.dumps({"device_kind": kind, "measured": True, "tiles": tuned}, indent=1) + "\n")


if __name__ == "__main__":
    main()
