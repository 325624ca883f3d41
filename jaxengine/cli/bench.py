"""Measures speed. Each benchmark prints a table of what was measured, beside its floor or its peer."""

from __future__ import annotations

import argparse
from importlib import import_module

USAGE = "NAME [options]"

# A module of jaxengine.bench with `add_arguments(parser)` and `run(args) -> exit code`, and what it measures.
BENCHMARKS = {
    "decode": "tokens a second of 1 to 32 streams",
    "prefill": "prompt tokens a second",
    "mixed": "requests of mixed lengths that come together",
    "batching": "continuous against static batching",
    "chunked": "what running answers feel while a long prompt arrives",
    "prefix": "the prefix cache: what it saves, and what it costs where it never helps",
    "kernel": "the attention op alone, over the shapes that a tuner looks at",
    "step": "compiled steps alone: decode and chunks of prompts, with random weights of any size",
    "serve": "through HTTP against the engine alone, and against other servers",
    "host": "the host's share of a step",
    "scaling": "bytes, collectives and the floor of a step on up to 64 devices that are not at hand",
    "start": "from the command to the first token",
    "memory": "memory after loading, and its growth over many steps",
    "all": "all of these in a short form, each in a process of its own",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "\n".join(f"  {name:<9} {text}" for name, text in BENCHMARKS.items())
    parser.epilog = f"benchmarks:\n{listed}\n\n`jaxengine bench NAME --help` explains one."
    parser.add_argument("name", metavar="NAME", help="one of the list below")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="the benchmark's own options")


def run(args: argparse.Namespace) -> int:
    if args.name not in BENCHMARKS:
        raise ValueError(f"benchmark {args.name!r} is unknown; known: {', '.join(BENCHMARKS)}")
    module = import_module(f"jaxengine.bench.{args.name}")
    parser = argparse.ArgumentParser(f"jaxengine bench {args.name}", description=module.__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    return module.run(parser.parse_args(args.options))
