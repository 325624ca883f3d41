"""Every benchmark in a short form, each in a process of its own, so that none inherits another's memory or caches.

  jaxengine bench all
  jaxengine bench all --full --json results.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxengine.bench.options import MODEL

BENCHMARKS = ("decode", "prefill", "mixed", "host", "start", "batching", "prefix", "chunked", "memory", "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=MODEL, metavar="MODEL", help=f"[{MODEL}]")
    parser.add_argument("--full", action="store_true", help="all repeats and sizes")
    parser.add_argument("--only", default=",".join(BENCHMARKS), metavar="NAME,...", help="[all of them]")
    parser.add_argument("--json", metavar="FILE", help="write a list of all reports there")


def run(args: argparse.Namespace) -> int:
    names = args.only.split(",")
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        raise ValueError(f"--only {args.only}: {', '.join(sorted(unknown))} is unknown; known: {', '.join(BENCHMARKS)}")
    reports, failed = [], []
    with tempfile.TemporaryDirectory(prefix="jaxengine-bench-") as folder:
        for name in names:
            file = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "jaxengine.cli.main", "bench", name]
            command += ["--model", args.model, "--json", str(file)] + ([] if args.full else ["--short"])
            code = subprocess.run(command, check=False).returncode
            print(flush=True)
            if code:
                failed.append(name)
            else:
                reports.append(json.loads(file.read_text()))
    if args.json is not None:
        Path(args.json).write_text(json.dumps(reports, indent=2) + "\n")
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return 1 if failed else 0
