"""From the command to the first token: with everything in the compilation cache, and with an empty cache.

Each start is a process of its own, timed from its launch to the first byte that it prints. Beside it: what
`import jaxengine` takes over `import jax`, and what the engine's own modules take.

  jaxengine bench start
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jaxengine.bench.options import MODEL, add_report_arguments, repeats
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, spread

IMPORTS = {
    "import jax": "import jax",
    "import jaxengine": "import jax, jaxengine",
    "from jaxengine import LLM": "import jax; from jaxengine import LLM",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser, repeats=3)
    parser.add_argument("--model", default=MODEL, metavar="MODEL", help=f"[{MODEL}]")
    parser.add_argument("--dtype", default="bfloat16", help="[bfloat16]")
    parser.add_argument("--prompt", default="The capital of France is", metavar="TEXT")


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="jaxengine-bench-") as folder:
        command = [
            sys.executable, "-m", "jaxengine.cli.main", "generate", args.model, "--prompt", args.prompt,
            "--max-tokens", "1", "--temperature", "0", "--dtype", args.dtype, "--compilation-cache-dir",
        ]
        first_token_s([*command, f"{folder}/warm"])       # fetches the model, fills the cache
        cold = itertools.count()
        starts = alternate({
            "warm cache": lambda: first_token_s([*command, f"{folder}/warm"]),
            "no cache": lambda: first_token_s([*command, f"{folder}/cold{next(cold)}"]),
        }, repeats(args), warmup=0)
    imports = alternate({name: lambda code=code: _run_s(code) for name, code in IMPORTS.items()}, repeats(args))
    base = median(imports["import jax"])
    rows = [_row(f"first token, {name}", seconds, None) for name, seconds in starts.items()]
    rows += [_row(name, seconds, base) for name, seconds in imports.items()]
    return Report("start", rows, {"model": args.model, "dtype": args.dtype, "repeats": repeats(args)})


def first_token_s(command: list[str]) -> float:
    """Seconds from the launch to the first byte on standard output. Raises ValueError where the command fails."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        _, error = process.communicate()
    if process.returncode or not first:
        raise ValueError(f"{' '.join(command)} failed: {error.decode(errors='replace')[-500:]}")
    return seconds


def _run_s(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment())
    return time.perf_counter() - start


def _environment() -> dict[str, str]:
    """This process's environment without a compilation cache of JAX's own; the package as it is imported here."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), env.get("PYTHONPATH")]))
    return env


def _row(name: str, seconds: list[float], base: float | None) -> dict[str, Any]:
    over = None if base is None else median(seconds) - base
    return {"what": name, "s": median(seconds), "spread": spread(seconds), "over import jax, s": over}
