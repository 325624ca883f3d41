"""The flags that benchmarks share, and the engine they describe."""

from __future__ import annotations

import argparse
import os
from typing import Any

from jaxengine.bench.model import open_engine
from jaxengine.checkpoint import gemma_terms_accepted
from jaxengine.cli.engine_flags import FLAGS, add_engine_arguments
from jaxengine.cli.flags import given
from jaxengine.engine.engine import Engine

MODEL = "smollm2-135m-instruct"


def add_report_arguments(parser: argparse.ArgumentParser, repeats: int = 5) -> None:
    group = parser.add_argument_group("measuring")
    group.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"to take medians of [{repeats}]")
    group.add_argument("--short", action="store_true", help="fewer repeats and sizes: a look, not a figure to keep")
    group.add_argument("--json", metavar="FILE", help="write the figures there too")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """--model and every engine setting; a benchmark has its own defaults for some of them."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", default=MODEL, metavar="MODEL",
        help=f"demo name, folder, .gguf file or hub id; random:CONFIG makes random weights for a config.json, or for "
        f"the name of one in configs/experiments [{MODEL}]",
    )
    group.add_argument("--accept-gemma-terms", action="store_true", help="you accept the terms of Gemma models")
    add_engine_arguments(parser)


def engine_options(args: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """The engine's options: a benchmark's own, then what the command line sets. All shapes are compiled first."""
    return {"dtype": "bfloat16", "warmup": "full"} | defaults | given(args, FLAGS)


def engine_for(args: argparse.Namespace, **defaults: Any) -> Engine:
    accept = args.accept_gemma_terms or gemma_terms_accepted(os.environ)
    return open_engine(args.model, engine_options(args, **defaults), accept_terms=accept)


def repeats(args: argparse.Namespace) -> int:
    """Raises ValueError for a number below one."""
    if args.repeats < 1:
        raise ValueError(f"--repeats {args.repeats}: at least one is needed")
    return min(args.repeats, 2) if args.short else args.repeats


def settings(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """What a report says about the engine."""
    scheduler, memory = engine.config.scheduler, engine.memory_plan
    return {
        "model": args.model,
        "dtype": engine.config.dtype,
        "attention": engine.runner.backend,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": engine.max_model_len,
        "block_size": memory.block_size,
        "num_blocks": memory.num_blocks,
        "kv_cache_dtype": memory.kv_cache_dtype,
        "repeats": repeats(args),
    }
