"""Memory of the process: after loading against weights and KV pool, and its growth over 10,000 steps.

The growth is measured on a tiny random model: a leak on the host does not depend on the model's size.

  jaxengine bench memory
"""

from __future__ import annotations

import argparse
import gc
import random
from pathlib import Path
from typing import Any

from jaxengine.bench.drive import drain
from jaxengine.bench.model import open_engine
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.workload import greedy, random_ids
from jaxengine.engine.engine import Engine

TINY = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 64, "warmup": "full"}
SETTLE = 0.1      # share of the steps before the first reading: caches fill


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser, repeats=1)
    parser.add_argument("--steps", type=int, default=10_000, metavar="N", help="[10000]")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    before = resident_bytes()
    engine = engine_for(args)
    drain(engine)
    after, plan = resident_bytes(), engine.memory_plan
    facts = settings(engine, args)
    rows = [
        {"what": "weights", "MB": plan.weight_bytes / 1e6},
        {"what": "KV pool", "MB": plan.pool_bytes / 1e6},
        {"what": "sampler state", "MB": sum(x.nbytes for x in vars(engine.runner.state).values()) / 1e6},
        {"what": "process before loading", "MB": _mb(before["anonymous"])},
        {"what": "process after loading", "MB": _mb(after["anonymous"])},
        {"what": "its peak", "MB": _mb(after["peak"])},
    ]
    if after["anonymous"] is not None and before["anonymous"] is not None:
        # The pool is zeros that the system maps on first touch, and the rest is code that was compiled.
        gained = after["anonymous"] - before["anonymous"]
        facts["loaded over weights and pool"] = gained / (plan.weight_bytes + plan.pool_bytes)
    engine.runner.close()
    del engine
    gc.collect()
    steps = 1000 if args.short else args.steps
    tiny = open_engine("random:tiny", TINY)
    rows.append({"what": f"growth over {steps} steps", "MB": _mb(growth(tiny, steps))})
    tiny.runner.close()
    return Report("memory", rows, facts)


def growth(engine: Engine, steps: int) -> int | None:
    """Bytes that the process gained over `steps` steps of requests that come and go, after some steps to settle."""
    r = random.Random(0)
    _step_often(engine, int(SETTLE * steps), r)
    gc.collect()
    before = resident_bytes()["anonymous"]
    _step_often(engine, steps, r)
    gc.collect()
    after = resident_bytes()["anonymous"]
    drain(engine)
    return None if before is None or after is None else after - before


def _step_often(engine: Engine, steps: int, r: random.Random) -> None:
    for _ in range(steps):
        if engine.scheduler.num_waiting == 0:
            prompt = random_ids(r, r.randint(4, 40), engine.runner.cfg.vocab_size)
            engine.add_request(prompt, greedy(r.randint(1, 40)), output_kind="final_only")
        engine.step()


def resident_bytes() -> dict[str, int | None]:
    """Private and peak resident bytes of this process; None where the system does not tell."""
    status = Path("/proc/self/status")
    names = {"anonymous": "RssAnon", "peak": "VmHWM"}
    if not status.exists():
        return dict.fromkeys(names)
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return {key: int(lines[name].split()[0]) * 1024 if name in lines else None for key, name in names.items()}


def _mb(value: Any) -> float | None:
    return None if value is None else value / 1e6
