"""Requests of mixed lengths, all there at the start: prompts of 16 to 128 tokens, outputs of 16 to 64.

Prefill is part of the time. Beside the rate: the share of KV slots that were allocated but empty, the share of
computed tokens that were padding, and the steps by kind and bucket.

  jaxengine bench mixed
  jaxengine bench mixed --peer-command "vllm-cpu=python peer_vllm.py ./model"
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from jaxengine.bench import peer
from jaxengine.bench.drive import Drive, drive
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.timing import alternate, median, spread
from jaxengine.bench.workload import Prompt, mixed
from jaxengine.cli.flags import integers
from jaxengine.engine.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser)
    parser.add_argument("--requests", type=integers, default=[16, 32], metavar="N,N,...", help="[16,32]")
    peer.add_arguments(parser)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    commands = peer.from_arguments(args)
    # Blocks are not reused between repeats of the same prompts: the peers compute every prompt too.
    engine = engine_for(args, max_num_seqs=max(args.requests), max_model_len=256, enable_prefix_caching=False)
    workloads = {n: mixed(n, engine.runner.cfg.vocab_size) for n in args.requests}
    variants: dict[Any, Any] = {n: partial(drive, engine, workloads[n]) for n in args.requests}
    alternate(variants, 0)      # a peer's command warms itself up, and may take minutes to do so
    for name, command in commands.items():
        variants[name] = partial(peer.output_rates, command, args.requests)
    results = alternate(variants, repeats(args), warmup=0)
    rows = []
    for n in args.requests:
        waste = pool_waste(engine, workloads[n])
        rows.append(_row(n, workloads[n], results[n], waste, {p: [x[n] for x in results[p]] for p in commands}))
    facts = settings(engine, args) | {f"steps of mixed({n})": results[n][-1].kinds() for n in args.requests}
    engine.runner.close()
    return Report("mixed", rows, facts)


def pool_waste(engine: Engine, prompts: list[Prompt]) -> float:
    """Allocated but empty KV slots over allocated ones, the mean over a run's steps. Not under the clock."""
    seen: list[float] = []

    def look() -> None:
        if engine.scheduler.num_running:
            seen.append(engine.scheduler.waste())

    drive(engine, prompts, on_step=look)
    return sum(seen) / len(seen)


def _row(
    n: int, prompts: list[Prompt], runs: list[Drive], waste: float, peers: dict[str, list[float]]
) -> dict[str, Any]:
    wall = [run.wall_s for run in runs]
    output = sum(p.output_len for p in prompts)
    row: dict[str, Any] = {
        "requests": n, "output tok/s": output / median(wall), "wall s": median(wall), "spread": spread(wall),
        "steps": len(runs[-1].steps), "padding": runs[-1].padding, "pool waste": waste,
    }
    for name, rates in peers.items():
        row |= {f"{name} tok/s": median(rates), f"over {name}": row["output tok/s"] / median(rates)}
    return row
