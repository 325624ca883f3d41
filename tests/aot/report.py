"""Compiles the kernels and whole engine steps for chips that are not there, prints what they take, and checks it.

  python tests/aot/report.py             the variants that matter most, and steps of Qwen3-8B
  python tests/aot/report.py --full      every variant, and steps of Llama-3.1-8B too

Runs on any machine, in a venv with jax 0.11.2, its CUDA plugin and nvidia-cuda-nvcc (make kernels). Exits with 1 where
something is not as it should be.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import engine_steps
import h200
import kernel_variants


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every variant")
    parser.add_argument("--only", choices=("kernels", "steps"), help="one of the two parts")
    parser.add_argument("--match", default="", metavar="TEXT", help="kernel variants whose name contains this")
    parser.add_argument("--layers", type=int, help="of the models whose steps are compiled [all]")
    args = parser.parse_args()
    failures = 0
    if args.only != "steps":
        failures += kernels(args.full, args.match)
    if args.only != "kernels":
        failures += steps(("qwen3-8b", "llama-3.1-8b") if args.full else ("qwen3-8b",), args.layers)
    print(f"{failures} problems" if failures else "all as it should be")
    return 1 if failures else 0


def kernels(full: bool, match: str) -> int:
    print(f"{'variant':34} {'kernel':18} {'regs':>5} {'spills':>6} {'smem':>8} {'wgmma':>5} {'copies':>6} "
          f"{'MB':>8} {'GFLOP':>8} {'floor us':>8}")
    failures, mesh = 0, h200.mesh(1)
    for variant in (v for v in kernel_variants.variants(full) if match in v.case.name):
        machines, memory = kernel_variants.compile_variant(variant, mesh)
        num_bytes, flops, seconds = kernel_variants.floor(variant.case)
        for kernel in machines:
            main_kernel = kernel.name.startswith(variant.case.name.split()[0])
            floor = f"{num_bytes / 1e6:8.1f} {flops / 1e9:8.1f} {seconds * 1e6:8.1f}" if main_kernel else ""
            print(f"{variant.case.name:34} {kernel.name:18} {kernel.registers:5} {kernel.spill_bytes:6} "
                  f"{kernel.smem_bytes:8} {kernel.wgmma:5} {kernel.tensor_copies:6} {floor}", flush=True)
        failures += tell(variant.case.name, kernel_variants.problems(variant, machines, memory))
    return failures


def steps(models: tuple[str, ...], layers: int | None) -> int:
    print(f"\n{'step':40} {'pool MB':>9} {'in place':>9} {'temp MB':>8} {'TFLOP':>7} {'sent MB':>8} {'seconds':>8}")
    failures = 0
    for model in models:
        for count in (1, 8):
            started = time.perf_counter()
            for step in engine_steps.compile_steps(model, count, layers):
                sent, name = sum(c.num_bytes for c in step.sent), f"{model} x{count} {step.key}"
                print(f"{name:40} {step.pool_bytes / 1e6:9.1f} {step.alias_bytes / 1e6:9.1f} "
                      f"{step.temp_bytes / 1e6:8.1f} {step.flops / 1e12:7.2f} {sent / 1e6:8.1f} "
                      f"{time.perf_counter() - started:8.0f}", flush=True)
                failures += tell(name, engine_steps.problems(step))
    return failures


def tell(name: str, problems: list[str]) -> int:
    for problem in problems:
        print(f"  PROBLEM {name}: {problem}")
    return len(problems)


if __name__ == "__main__":
    sys.exit(main())
