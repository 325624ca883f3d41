"""Host time of a step: schedule, build the batch, sampling rows, detokenise, look for stop strings.

The device is a stand-in that returns random ids at once. Every sequence decodes, has a stop string, and its text is
handed out after each step, as a server that streams does.

  jaxengine bench host
  jaxengine bench host --sequences 256 --profile
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import time
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from jaxengine.bench.drive import drain
from jaxengine.bench.options import MODEL, add_report_arguments, repeats
from jaxengine.bench.report import Report, finish
from jaxengine.bench.stand_in import stand_in_engine
from jaxengine.bench.timing import alternate, median, spread
from jaxengine.bench.workload import random_ids
from jaxengine.checkpoint import open_checkpoint
from jaxengine.cli.flags import integers
from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.stats import StepStats
from jaxengine.tokenizer import Tokenizer, load_tokenizer
from jaxengine.types import SamplingParams

PROMPT, CONTEXT = 64, 1024      # tokens
PARTS = [f.name for f in fields(StepStats) if f.name.endswith("_s") and f.name not in ("wait_s", "step_s")]
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "presence_penalty": 0.2},
    "biased": {"temperature": 0.8, "logit_bias": {7: 2.0, 8: -2.0}, "bad_words": ["bad"]},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser)
    parser.add_argument("--sequences", type=integers, default=[32, 256], metavar="N,N,...", help="[32,256]")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps under the clock [200]")
    parser.add_argument("--model", default=MODEL, metavar="MODEL", help="whose tokenizer is used; none: ids alone")
    parser.add_argument("--profile", action="store_true", help="print where the time of the first case goes")


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


@dataclass
class Host:
    """Mean seconds a step, whole and by part."""

    step_s: float
    parts: dict[str, float]


def measure(args: argparse.Namespace) -> Report:
    tokenizer = None if args.model == "none" else load_tokenizer(open_checkpoint(args.model))
    steps = 50 if args.short else args.steps
    cases = [(n, sampling) for n in args.sequences for sampling in SAMPLING]
    engines = {n: _engine(n, tokenizer) for n in args.sequences}
    if args.profile:
        _profile(engines[args.sequences[0]], steps)
    variants = {(n, sampling): partial(host_time, engines[n], sampling, steps) for n, sampling in cases}
    results = alternate(variants, repeats(args))
    rows = [_row(n, sampling, results[n, sampling]) for n, sampling in cases]
    for engine in engines.values():
        engine.runner.close()
    facts = {"tokenizer": args.model, "steps": steps, "prompt tokens": PROMPT, "repeats": repeats(args)}
    return Report("host", rows, facts)


def _engine(sequences: int, tokenizer: Tokenizer | None) -> Engine:
    config = EngineConfig.from_options(max_num_seqs=sequences, max_num_batched_tokens=max(2048, sequences))
    return stand_in_engine(config, tokenizer.vocab_size if tokenizer else 49152, CONTEXT, tokenizer)


def start(engine: Engine, sampling: str, steps: int) -> None:
    """Fills the engine and steps until every sequence decodes."""
    r, text = random.Random(0), engine.tokenizer is not None
    output: dict[str, Any] = {"stop": ["\n\nUser:"]} if text else {"detokenize": False, "bad_words": None}
    params = SamplingParams(max_tokens=steps + 100, ignore_eos=True, **(SAMPLING[sampling] | output))
    waiting = {
        engine.add_request(random_ids(r, PROMPT, engine.runner.cfg.vocab_size), params, output_kind="delta")
        for _ in range(engine.config.scheduler.max_num_seqs)
    }
    while waiting:
        waiting -= {output.request_id for output in engine.step()}


def host_time(engine: Engine, sampling: str, steps: int) -> Host:
    start(engine, sampling, steps)
    gc.collect()      # of what earlier repeats left; the collector stays on, as in use
    begin = time.perf_counter()
    for _ in range(steps):
        engine.step()
    step_s = (time.perf_counter() - begin) / steps
    stats = list(engine.stats)[-steps:]
    drain(engine)
    return Host(step_s, {part: sum(getattr(s, part) for s in stats) / len(stats) for part in PARTS})


def _row(sequences: int, sampling: str, runs: list[Host]) -> dict[str, Any]:
    seconds = [run.step_s for run in runs]
    row: dict[str, Any] = {"sequences": sequences, "sampling": sampling, "ms/step": median(seconds) * 1e3}
    row["spread"] = spread(seconds)
    row["us/sequence"] = median(seconds) * 1e6 / sequences
    for part in PARTS:
        row[f"{part.removesuffix('_s')} ms"] = median([run.parts[part] for run in runs]) * 1e3
    return row


def _profile(engine: Engine, steps: int) -> None:
    start(engine, "greedy", steps)
    with cProfile.Profile() as profile:
        for _ in range(steps):
            engine.step()
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    drain(engine)
