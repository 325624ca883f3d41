"""Measures speed. Each benchmark prints a table of what was measured beside its floor or its peer.

  jaxengine bench NAME --help
"""

from __future__ import annotations

import argparse
from importlib import import_module

USAGE = "NAME [options]"

# A module of jaxengine.bench with `add_arguments(parser)` and `run(args) -> exit code`, and what it measures.
BENCHMARKS: dict[str, str] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "; ".join(f"{name}: {text}" for name, text in BENCHMARKS.items())
    parser.add_argument("name", metavar="NAME", help=listed or "none is there yet")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="the benchmark's own options")


def run(args: argparse.Namespace) -> int:
    if args.name not in BENCHMARKS:
        raise ValueError(f"benchmark {args.name!r} is unknown; known: {', '.join(BENCHMARKS) or 'none yet'}")
    module = import_module(f"jaxengine.bench.{args.name}")
    parser = argparse.ArgumentParser(f"jaxengine bench {args.name}", description=module.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    return module.run(parser.parse_args(args.options))
