"""Compiles the TPU kernels for chips that are not there, prints what they take, and checks it.

  python tests/aot/tpu.py             blocks of 16 tokens
  python tests/aot/tpu.py --full      every variant
  python tests/aot/tpu.py --full --only "v5e H128"

Runs on any machine, in a venv with jax[tpu] 0.11.2 (make kernels). Exits with 1 where a variant does not compile, takes
longer than --timeout, copies the pool, or needs more VMEM than the kernel allows itself. Compiling is a process of its
own, for libtpu can take minutes to refuse a kernel.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

# There is no chip: nothing to ask about it, and nothing that another process must be kept from.
os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tpu_variants import VARIANTS, Variant, compile_variant

COLUMNS = ("variant", "compiled", "seconds", "VMEM MiB", "pool MiB", "aliased MiB", "temp MiB", "remark")


class Worker:
    """A process that compiles one variant after another; ended and made anew where one takes too long."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def compile(self, variant: Variant, timeout: float) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), process.kill()))
        timer.start()
        try:
            process.stdin.write(f"{VARIANTS.index(variant)}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        why = f"no answer within {timeout:.0f} s" if late.is_set() else "the compiler's process died"
        return {"ok": False, "remark": f"{why}; exit status {process.wait()}"}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def serve() -> None:
    """Reads variants' numbers from standard input; writes a line of JSON for each."""
    for line in sys.stdin:
        print(json.dumps(compile_variant(VARIANTS[int(line)])), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the TPU kernels for v5e and v6e without one.")
    parser.add_argument("--full", action="store_true", help="every variant")
    parser.add_argument("--only", default="", metavar="TEXT", help="variants whose name contains this")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds for each compilation [300]")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve()
        return 0
    among = [variant for variant in VARIANTS if args.full or variant.block_size == 16]
    chosen = [variant for variant in among if args.only in variant.name]
    if not chosen:
        parser.error(f"--only {args.only!r}: no variant's name contains this; one is {among[0].name!r}")
    worker, failed = Worker(), 0
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for variant in chosen:
        result = worker.compile(variant, args.timeout)
        failed += not result["ok"]
        numbers = [result.get(key, "") for key in ("seconds", "vmem", "pool", "aliased", "temp")]
        cells = [variant.name, "yes" if result["ok"] else "NO", *numbers, result.get("remark", "")]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    worker.close()
    print(f"{len(chosen) - failed} of {len(chosen)} TPU variants compiled")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
