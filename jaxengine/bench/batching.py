"""Continuous against static batching: requests whose output lengths differ eightfold, many more than fit at once.

Static: as many as fit start together, and the next ones only when the last of them has ended. Same engine, same
executables; only the moment at which a request is added differs.

  jaxengine bench batching
"""

from __future__ import annotations

import argparse
from functools import partial

from jaxengine.bench.drive import Drive, drive
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, spread
from jaxengine.bench.workload import Prompt, long_tailed
from jaxengine.engine.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser, repeats=3)
    parser.add_argument("--requests", type=int, default=64, metavar="N", help="requests in all [64]")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    engine = engine_for(args, max_num_seqs=16, max_model_len=256, enable_prefix_caching=False)
    prompts = long_tailed(16 if args.short else args.requests, engine.runner.cfg.vocab_size)
    at_once = engine.config.scheduler.max_num_seqs
    runs = alternate(
        {"static": partial(static, engine, prompts, at_once), "continuous": partial(drive, engine, prompts)},
        repeats(args),
    )
    rates = {name: median([run.rate for run in found]) for name, found in runs.items()}
    rows = [
        {
            "batching": name, "output tok/s": rates[name], "spread": spread([run.rate for run in found]),
            "steps": len(found[-1].steps), "sequences/step": _mean_seqs(found[-1]),
            "over static": rates[name] / rates["static"],
        }
        for name, found in runs.items()
    ]
    facts = settings(engine, args) | {"requests": len(prompts)}
    engine.runner.close()
    return Report("batching", rows, facts)


def static(engine: Engine, prompts: list[Prompt], size: int) -> Drive:
    """Groups of `size`, each to its end before the next."""
    parts = [drive(engine, prompts[at : at + size]) for at in range(0, len(prompts), size)]
    return Drive(
        sum(p.wall_s for p in parts), sum(p.output_tokens for p in parts), [step for p in parts for step in p.steps]
    )


def _mean_seqs(run: Drive) -> float:
    return sum(step.num_seqs for step in run.steps) / len(run.steps)
