"""Everything that only an accelerator can tell, in one run of bounded length: .ci/gpu.

  python -m jaxengine.bench.chip                 on a GPU: right results, attention, steps
  python -m jaxengine.bench.chip --tiny          the same from end to end on a CPU, with toy sizes

Attention is checked by the tests' own oracle, so a checkout is needed. Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxengine.bench.chip import attention, steps
from jaxengine.bench.chip.rates import Rates, measure_rates
from jaxengine.bench.report import Report, table
from pallas_kernels.ragged_paged_attention import api, gpu
from pallas_kernels.ragged_paged_attention.gpu_decode import DecodeTile
from pallas_kernels.ragged_paged_attention.gpu_prefill import PrefillTile
from pallas_kernels.ragged_paged_attention.gpu_tuning import Tiles

CHECKS = Path(__file__).resolve().parents[3] / "tests" / "kernels"
TINY_CHECKS = ("decode-sinks", "mixed-softcap-sinks-window")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="toy sizes, and the kernels interpreted")
    parser.add_argument("--seconds", type=float, default=450, help="no part starts after so long [450]")
    parser.add_argument("--parts", default="check,decode,prefill,steps", help="of these, in this order")
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-8b", help="of configs/experiments")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    started, wrong, found = time.perf_counter(), 0, {}

    rates = measure_rates(args.tiny)
    facts = {"copy TB/s": rates.copy / 1e12, "matmul TFLOP/s": rates.matmul / 1e12}
    print(Report("chip", [], facts).text(), flush=True)
    with _interpreted() if args.tiny else nullcontext():
        for name, rows in _parts(args, rates):
            left = args.seconds - (time.perf_counter() - started)
            if left <= 0:
                print(f"\n{name}: skipped, {args.seconds:g} seconds have passed")
                continue
            print(f"\n{name}", flush=True)
            found[name] = _show(rows(), started + args.seconds)
            wrong += sum(row.get("right") == "NO" for row in found[name])
    print(f"\n{time.perf_counter() - started:.0f} s; {f'{wrong} results are wrong' if wrong else 'all results right'}")
    if args.json:
        Path(args.json).write_text(json.dumps(Report("chip", [], facts | {"parts": found}).as_dict(), indent=2) + "\n")
    return 1 if wrong else 0


def _parts(args: argparse.Namespace, rates: Rates) -> Iterable[tuple[str, Callable[[], Iterable[dict[str, Any]]]]]:
    tiny, parts = args.tiny, args.parts.split(",")
    if "check" in parts:
        yield "check against float64", partial(_check, tiny)
    for name, shapes in (("decode", attention.DECODES), ("prefill", attention.PREFILLS)):
        if name in parts:
            chosen = tuple(s for s in attention.TINY if (s.q_len == 1) == (name == "decode")) if tiny else shapes
            yield f"attention: {name}", partial(attention.measure, chosen, rates, "pallas_gpu", True, tiny)
    if "steps" in parts:
        for model in ("tiny",) if tiny else args.models.split(","):
            loads, backend = (steps.TINY_LOADS, "xla") if tiny else (steps.LOADS, "pallas_gpu")
            repeats = 2 if tiny else 20
            yield f"steps of {model}", partial(steps.measure, model, loads, rates, backend, repeats)
        if not tiny:
            few = tuple(load for load in steps.LOADS if load.num_seqs <= 32 and load.kv_len <= 2048)
            yield "steps of qwen3-0.6b with XLA's attention", partial(
                steps.measure, "qwen3-0.6b", few, rates, "xla", 5
            )


def _show(rows: Iterable[dict[str, Any]], deadline: float) -> list[dict[str, Any]]:
    """Prints rows as they come, until the deadline."""
    shown = []
    for row in rows:
        shown.append(row)
        lines = table(shown).splitlines()
        print("\n".join(lines if len(shown) == 1 else lines[-1:]), flush=True)
        if time.perf_counter() > deadline:
            print("  ... out of time")
            break
    return shown


def _check(tiny: bool) -> Iterable[dict[str, Any]]:
    """Each case on fresh random inputs, with NaN where outputs will lie."""
    sys.path.insert(0, str(CHECKS))
    chip, hopper = import_module("chip_check"), import_module("hopper_cases")
    seed = secrets.randbits(31)
    for case in hopper.hopper_cases(hopper.CASES if tiny else hopper.CASES + hopper.LARGE):
        if tiny and case.name not in TINY_CHECKS:
            continue
        error, bound = chip.largest_error(case, seed, "pallas_gpu"), chip.tolerance(case)
        right = "yes" if error < bound else "NO"
        yield {"case": case.name, "seed": seed, "largest error": error, "bound": bound, "right": right}


@contextmanager
def _interpreted() -> Any:
    """Runs "pallas_gpu" in Pallas' interpreter, with tiles small enough for it."""
    tiles = Tiles(DecodeTile(stages=2, split=128, ctas=2), PrefillTile(kv_tile=64, warpgroups=1, ctas=2))
    kept = api.BACKENDS["pallas_gpu"]
    api.BACKENDS["pallas_gpu"] = partial(
        gpu.ragged_paged_attention, tiles=tiles, interpret=plgpu.InterpretGPUParams()
    )
    try:
        yield
    finally:
        api.BACKENDS["pallas_gpu"] = kept


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    sys.exit(main())
