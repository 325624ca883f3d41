"""What running answers feel while a long prompt arrives: with its prefill in chunks between them, and in one piece.

Inter-token latency: the time between two tokens of one stream as the caller sees them, from the prompt's arrival
to its first token. Both engines share weights and executables.

  jaxengine bench chunked
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxengine.bench.drive import drain
from jaxengine.bench.model import sibling
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, percentile
from jaxengine.bench.workload import greedy, random_ids
from jaxengine.engine.engine import Engine

DECODE_PROMPT, QUIET = 32, 16      # tokens of each stream before the long prompt arrives


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser)
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="answers that run [8]")
    parser.add_argument("--prompt-len", type=int, default=2000, metavar="N", help="of the prompt that arrives [2000]")
    parser.add_argument("--chunk", type=int, default=256, metavar="N", help="tokens of a step with chunks [256]")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


@dataclass
class Arrival:
    """Seconds between the streams' tokens while nothing else ran, and while the prompt was computed; its own wait."""

    quiet: list[float]
    during: list[float]
    first_token_s: float


def measure(args: argparse.Namespace) -> Report:
    length = args.prompt_len // 4 if args.short else args.prompt_len
    whole = length + args.streams
    engine = engine_for(
        args, max_num_seqs=args.streams + 1, max_num_batched_tokens=whole, token_buckets=_buckets(args, whole),
        max_model_len=-(-(length + 64) // 64) * 64, enable_prefix_caching=False, enable_chunked_prefill=False,
    )
    chunks = sibling(engine, scheduler={"max_num_batched_tokens": args.chunk, "enable_chunked_prefill": True})
    r = random.Random(0)
    runs = alternate({
        "whole prompt": partial(arrival, engine, args.streams, length, r),
        f"chunks of {args.chunk}": partial(arrival, chunks, args.streams, length, r),
    }, repeats(args))
    off = _p99(runs["whole prompt"])
    rows = [_row(name, found, off) for name, found in runs.items()]
    facts = settings(engine, args) | {"streams": args.streams, "prompt tokens": length}
    engine.runner.close()
    return Report("chunked", rows, facts)


def _buckets(args: argparse.Namespace, whole: int) -> tuple[int, ...]:
    """Tokens of a mixed step: the streams' prompts, a chunk, and the whole prompt beside the streams."""
    return tuple(sorted({args.streams * DECODE_PROMPT, args.chunk, -(-whole // 64) * 64}))


def arrival(engine: Engine, streams: int, length: int, r: random.Random) -> Arrival:
    vocab_size = engine.runner.cfg.vocab_size
    params = greedy(engine.max_model_len - DECODE_PROMPT)
    prompts = [random_ids(r, DECODE_PROMPT, vocab_size) for _ in range(streams)]
    running = [engine.add_request(ids, params, output_kind="delta") for ids in prompts]
    last: dict[str, float] = {}
    while len(last) < streams:
        _step(engine, last)
    quiet: list[float] = []
    for _ in range(QUIET):
        quiet += _step(engine, last)
    start = time.perf_counter()
    prompt = engine.add_request(random_ids(r, length, vocab_size), greedy(2), output_kind="delta")
    during: list[float] = []
    while prompt not in last:
        during += _step(engine, last)
    first_token_s = last[prompt] - start
    assert all(request_id in engine.requests for request_id in running), "a stream ended before the prompt was computed"
    drain(engine)
    return Arrival(quiet, during, first_token_s)


def _step(engine: Engine, last: dict[str, float]) -> list[float]:
    """One step; the seconds since each stream's token before. `last` holds when each had its latest token."""
    outputs = engine.step()
    now = time.perf_counter()
    gaps = [now - last[output.request_id] for output in outputs if output.request_id in last]
    last.update({output.request_id: now for output in outputs})
    return gaps


def _p99(runs: list[Arrival]) -> float:
    return median([percentile(run.during, 99) for run in runs])


def _row(name: str, runs: list[Arrival], off: float) -> dict[str, Any]:
    return {
        "prefill": name, "P99 ms": _p99(runs) * 1e3, "over whole": _p99(runs) / off,
        "median ms": median([median(run.during) for run in runs]) * 1e3,
        "quiet median ms": median([median(run.quiet) for run in runs]) * 1e3,
        "prompt's first token ms": median([run.first_token_s for run in runs]) * 1e3,
    }
