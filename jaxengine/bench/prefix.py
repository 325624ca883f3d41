"""Prefix caching: the first token of a prompt whose long beginning is cached, and the cost where nothing ever is.

Time to first token, cold over warm: a prompt of a new prefix and a new ending, then the same prefix with other
endings. Cost at 0% hits: requests that share nothing, with caching on and off, in turn; wall times on a shared machine
scatter by far more than that costs, so the host's own time in planning and reading the steps is compared too.

  jaxengine bench prefix
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial

from jaxengine.bench.drive import Drive, drive
from jaxengine.bench.model import sibling
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, spread
from jaxengine.bench.workload import Prompt, greedy, random_ids
from jaxengine.engine.engine import Engine

ENDING = 16      # tokens of a prompt after the shared prefix


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser)
    parser.add_argument("--prefix-len", type=int, default=1024, metavar="N", help="tokens that prompts share [1024]")
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="requests at 0%% hits [32]")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    length = args.prefix_len // 4 if args.short else args.prefix_len
    engine = engine_for(
        args, max_num_seqs=args.requests, max_model_len=-(-(length + ENDING + 1) // 64) * 64, enable_prefix_caching=True
    )
    r = random.Random(0)
    pairs = [first_tokens(engine, length, r) for _ in range(repeats(args) + 1)][1:]      # the first warms up
    cold, warm = [p[0] for p in pairs], [p[1] for p in pairs]
    rows = [
        {"what": f"first token, {length} new tokens", "ms": median(cold) * 1e3, "spread": spread(cold), "ratio": 1.0,
         "host ms": None},
        {"what": "first token, prefix cached", "ms": median(warm) * 1e3, "spread": spread(warm),
         "ratio": median(warm) / median(cold), "host ms": None},
    ]
    without = sibling(engine, cache={"enable_prefix_caching": False})
    runs = alternate({
        "caching off": partial(_no_hits, without, args.requests, r),
        "caching on": partial(_no_hits, engine, args.requests, r),
    }, repeats(args))
    walls = {name: [run.wall_s for run in drives] for name, drives in runs.items()}
    host = {name: median([_bookkeeping_s(run) for run in drives]) for name, drives in runs.items()}
    off = median(walls["caching off"])
    rows += [
        {"what": f"{args.requests} requests, no hit, {name}", "ms": median(seconds) * 1e3, "spread": spread(seconds),
         "ratio": median(seconds) / off, "host ms": host[name] * 1e3}
        for name, seconds in walls.items()
    ]
    facts = settings(engine, args) | {
        "cold over warm": median(cold) / median(warm),
        "host's cost at 0% hits": f"{(host['caching on'] - host['caching off']) / off:.2%} of the time",
    }
    engine.runner.close()
    return Report("prefix", rows, facts)


def first_tokens(engine: Engine, length: int, r: random.Random) -> tuple[float, float]:
    """Seconds to the first token of a prompt with a new prefix, and of one with the same prefix."""
    vocab_size = engine.runner.cfg.vocab_size
    shared = random_ids(r, length, vocab_size)
    cold, _ = first_token(engine, shared + random_ids(r, ENDING, vocab_size))
    warm, cached = first_token(engine, shared + random_ids(r, ENDING, vocab_size))
    block = engine.memory_plan.block_size
    assert cached >= length - length % block, f"{cached} of {length} tokens came from the cache"
    return cold, warm


def first_token(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Seconds to a prompt's first token, and how many of its tokens were cached."""
    start = time.perf_counter()
    engine.add_request(prompt, greedy(1), output_kind="final_only")
    cached = 0
    while engine.has_unfinished:
        for output in engine.step():
            cached = output.num_cached_tokens
    return time.perf_counter() - start, cached


def _bookkeeping_s(run: Drive) -> float:
    """Seconds in which the host plans steps, where prefixes are looked for, and reads them, where blocks are kept."""
    return sum(step.schedule_s + step.output_s for step in run.steps)


def _no_hits(engine: Engine, requests: int, r: random.Random) -> Drive:
    """Requests that nobody has asked before, the same lengths each time."""
    lengths, vocab_size = random.Random(3), engine.runner.cfg.vocab_size
    prompts = [
        Prompt(random_ids(r, lengths.randint(64, 128), vocab_size), lengths.randint(16, 64)) for _ in range(requests)
    ]
    hits = engine.blocks.num_hit_tokens
    run = drive(engine, prompts)
    assert engine.blocks.num_hit_tokens == hits, "prompts that should share nothing hit the prefix cache"
    return run
