"""Decode rate of 1, 4, 16 and 32 streams together, beside the machine's floor and beside llama.cpp.

Each stream has a prompt of 128 tokens. The clock runs over 64 steps in which every stream decodes, after all
prompts are computed: what llama-batched-bench calls S_TG. One KV position more or less aside, the streams are as
long as its own.

  jaxengine bench decode
  jaxengine bench decode --streams 32 --llama-bench-dir llama.cpp/build/bin --gguf smollm2-bf16.gguf
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from typing import Any

import jax

from jaxengine.bench import llama_cpp
from jaxengine.bench.drive import drain
from jaxengine.bench.floor import Floor, measure_floor
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, spread
from jaxengine.bench.workload import greedy, random_ids
from jaxengine.cli.flags import integers
from jaxengine.engine.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser)
    parser.add_argument("--streams", type=integers, default=[1, 4, 16, 32], metavar="N,N,...", help="[1,4,16,32]")
    parser.add_argument("--prompt-len", type=int, default=128, metavar="N", help="tokens of each prompt [128]")
    parser.add_argument("--steps", type=int, default=64, metavar="N", help="steps under the clock [64]")
    llama_cpp.add_arguments(parser)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


@dataclass(frozen=True)
class Rate:
    """Seconds a step of `streams` sequences, and the KV tokens they held on average."""

    streams: int
    step_s: float
    kv_tokens: float

    @property
    def tokens_per_s(self) -> float:
        return self.streams / self.step_s


def measure(args: argparse.Namespace) -> Report:
    peer = llama_cpp.from_arguments(args)
    streams = [1, 4] if args.short and args.streams == [1, 4, 16, 32] else args.streams
    most = max(streams)
    engine = engine_for(args, max_num_seqs=most, max_model_len=_longest(args, most), decode_buckets=_buckets(streams))
    r = random.Random(0)
    variants: dict[Any, Any] = {n: lambda n=n: decode_rate(engine, n, args.prompt_len, args.steps, r) for n in streams}
    if peer is not None:
        variants["peer"] = lambda: peer.decode_rates(streams, args.prompt_len, args.steps)
    results = alternate(variants, repeats(args))
    floor = measure_floor(engine, streams)
    peers = results.pop("peer", [])
    rows = [_row(results[n], floor, [p[n] for p in peers]) for n in streams]
    facts = settings(engine, args) | {
        "prompt tokens": args.prompt_len, "steps": args.steps, "read GB/s": floor.read / 1e9,
        "matmul GFLOP/s": ", ".join(f"{n}: {floor.rates[n] / 1e9:.0f}" for n in streams),
    }
    engine.runner.close()
    return Report("decode", rows, facts)


def decode_rate(engine: Engine, streams: int, prompt_len: int, steps: int, r: random.Random) -> Rate:
    """Runs `steps` steps of `streams` sequences under the clock."""
    vocab_size = engine.runner.cfg.vocab_size
    params = greedy(steps + _slack(engine.config.scheduler.max_num_batched_tokens, prompt_len, streams))
    prompts = [random_ids(r, prompt_len, vocab_size) for _ in range(streams)]
    waiting = {engine.add_request(ids, params, output_kind="delta") for ids in prompts}
    while waiting:      # until the first token of each was read
        waiting -= {output.request_id for output in engine.step()}
    jax.block_until_ready(engine.runner.state)
    kv_tokens = _kv_tokens(engine)
    start = time.perf_counter()
    for _ in range(steps):
        engine.step()
        assert engine.stats[-1].num_seqs == streams, "a stream ended too early"
    jax.block_until_ready(engine.runner.state)
    seconds = time.perf_counter() - start
    kv_tokens = (kv_tokens + _kv_tokens(engine)) / 2
    drain(engine)
    return Rate(streams, seconds / steps, kv_tokens)


def _kv_tokens(engine: Engine) -> int:
    return sum(seq.num_computed_tokens for seq in engine.scheduler.running)


def _slack(budget: int, prompt_len: int, streams: int) -> int:
    """Tokens that the first stream may generate while the last one's prompt is still computed, and some more."""
    return -(-prompt_len * streams // max(1, budget - streams)) + 4


def _longest(args: argparse.Namespace, streams: int) -> int:
    """Context that the longest stream needs, in whole blocks of 64 tokens."""
    needed = args.prompt_len + args.steps + _slack(512, args.prompt_len, streams)
    return -(-needed // 64) * 64


def _buckets(streams: list[int]) -> tuple[int, ...]:
    return tuple(sorted({max(2, n) for n in streams}))


def _row(rates: list[Rate], floor: Floor, peers: list[float]) -> dict[str, Any]:
    streams = rates[0].streams
    seconds = [rate.step_s for rate in rates]
    lowest = floor.decode_s(streams, median([rate.kv_tokens for rate in rates]))
    row: dict[str, Any] = {
        "streams": streams, "tok/s": streams / median(seconds), "ms/step": median(seconds) * 1e3,
        "spread": spread(seconds), "floor ms": lowest * 1e3, "over floor": median(seconds) / lowest,
    }
    if peers:
        row |= {"llama.cpp tok/s": median(peers), "over llama.cpp": row["tok/s"] / median(peers)}
    return row
