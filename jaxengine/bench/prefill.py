"""Prompt tokens a second: one prompt of 512 tokens, and eight at once, beside the floor and llama.cpp.

The clock runs from the request to its first token. The head is computed for each prompt's last token alone, as
`llama-bench -p 512` does.

  jaxengine bench prefill
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from jaxengine.bench import llama_cpp
from jaxengine.bench.floor import measure_floor
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, spread
from jaxengine.bench.workload import greedy, random_ids
from jaxengine.cli.flags import integers
from jaxengine.engine.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser)
    parser.add_argument("--prompts", type=integers, default=[1, 8], metavar="N,N,...", help="prompts at once [1,8]")
    parser.add_argument("--prompt-len", type=int, default=512, metavar="N", help="tokens of each prompt [512]")
    llama_cpp.add_arguments(parser)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    peer, length = llama_cpp.from_arguments(args), args.prompt_len
    engine = engine_for(
        args, max_num_seqs=max(args.prompts), max_num_batched_tokens=512, max_model_len=-(-(length + 1) // 64) * 64
    )
    r = random.Random(0)
    variants: dict[Any, Any] = {n: lambda n=n: prefill_s(engine, n, length, r) for n in args.prompts}
    if peer is not None:
        for n in args.prompts:
            call = (lambda: peer.prefill_rate(length)) if n == 1 else (lambda n=n: peer.prefill_batch_rate(n, length))
            variants["peer", n] = call
    results = alternate(variants, repeats(args))
    step = engine.runner.buckets.mixed[-1]
    floor = measure_floor(engine, [step])
    rows = [
        _row(n, length, results[n], floor.prefill_s(n * length, step), results.get(("peer", n))) for n in args.prompts
    ]
    facts = settings(engine, args) | {"prompt tokens": length, "matmul GFLOP/s": floor.rates[step] / 1e9}
    engine.runner.close()
    return Report("prefill", rows, facts)


def prefill_s(engine: Engine, prompts: int, length: int, r: random.Random) -> float:
    """Seconds until every prompt has its first token. The prompts are new each time: no prefix is cached."""
    ids = [random_ids(r, length, engine.runner.cfg.vocab_size) for _ in range(prompts)]
    start = time.perf_counter()
    for prompt in ids:
        engine.add_request(prompt, greedy(1), output_kind="final_only")
    while engine.has_unfinished:
        engine.step()
    return time.perf_counter() - start


def _row(prompts: int, length: int, seconds: list[float], floor_s: float, peers: list[float] | None) -> dict[str, Any]:
    rate = prompts * length / median(seconds)
    row: dict[str, Any] = {
        "prompts": prompts, "tok/s": rate, "ms": median(seconds) * 1e3, "spread": spread(seconds),
        "floor tok/s": prompts * length / floor_s, "over floor": median(seconds) / floor_s,
    }
    if peers:
        row |= {"llama.cpp tok/s": median(peers), "over llama.cpp": rate / median(peers)}
    return row
