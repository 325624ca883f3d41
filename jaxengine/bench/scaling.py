"""How models scale over devices that are not at hand: bytes on each, what they send each other, and a step's floor.

Each cell of models x meshes x steps is lowered for as many fake CPU devices as it has, and its collectives are
read from the program. Nothing is allocated, and nothing but counting is done on this machine. The step's time is
then reckoned from rates that are given: it is a floor under the assumptions that the report states.

Cells are kept in OUT/results.jsonl as they are done, so an interrupted run goes on where it was, and other rates
need no new lowering.

  jaxengine bench scaling
  jaxengine bench scaling --models llama-3.1-70b --meshes 1x8,2x8 --batch 128 --context 8192 --out results/70b
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from jaxengine.bench.environment import environment
from jaxengine.bench.prediction import Exchange, Machine, StepWork, predict
from jaxengine.bench.report import Report, finish
from jaxengine.bench.scaling_cells import Cell
from jaxengine.bench.scaling_plot import draw

MODELS = "qwen3-8b,llama-3.1-8b,llama-3.1-70b"
MESHES = "1x1,1x2,1x4,1x8,2x4,2x8,4x2,4x8,8x1,8x8"
STEPS = ("decode", "prefill")
USABLE = 0.9      # of a device's memory, for weights and pool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=MODELS, metavar="NAME,...", help=f"configs by name or path [{MODELS}]")
    parser.add_argument("--meshes", default=MESHES, metavar="DxT,...", help=f"data x tensor parallelism [{MESHES}]")
    parser.add_argument("--steps", default=",".join(STEPS), metavar="KIND,...", help="decode, prefill or both [both]")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="sequences of a decode step [256]")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens of each [4096]")
    parser.add_argument("--chunk", type=int, default=4096, metavar="N", help="prompt tokens of a prefill step [4096]")
    for field in fields(Machine):
        flag = f"--{field.name.replace('_', '-')}"
        help_ = f"of a device, see Machine [{field.default:g}]"
        parser.add_argument(flag, type=float, default=field.default, metavar="X", help=help_)
    parser.add_argument("--out", default="results/scaling", metavar="FOLDER", help="[results/scaling]")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    cells = list(_cells(args))
    machine = Machine(**{field.name: getattr(args, field.name) for field in fields(Machine)})
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    works, refused = _complete(cells, out / "results.jsonl")
    rows = [_row(cell, works[cell.id], machine) for cell in cells if cell.id in works]
    if not rows:
        raise ValueError("; ".join(dict.fromkeys(refused.values())))
    (out / "env.json").write_text(json.dumps(environment() | {"machine": asdict(machine)}, indent=2) + "\n")
    with open(out / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    facts = {
        "device": ", ".join(f"{name} {value:g}" for name, value in asdict(machine).items()),
        "assumed": "weights and KV cache read once; rings over equal links within a shard; nothing overlaps",
        "table": out / "results.csv",
        "plot": draw(rows, out / "plot.png"),
    }
    if refused:
        facts["left out"] = "; ".join(f"{cell.model} {cell.data}x{cell.tensor}" for cell in cells if cell.id in refused)
    return Report("scaling", rows, facts)


def _cells(args: argparse.Namespace) -> list[Cell]:
    """Raises ValueError for what is no mesh or no step, and where a batch cannot be shared among shards."""
    cells = []
    for model in args.models.split(","):
        for mesh in args.meshes.split(","):
            data, cross, tensor = mesh.partition("x")
            if not cross or not data.isdigit() or not tensor.isdigit() or "0" in (data, tensor):
                raise ValueError(f"--meshes: {mesh!r} is not DATAxTENSOR, as 2x4")
            if args.batch % int(data):
                raise ValueError(f"--batch {args.batch} cannot be shared by {data} shards; choose a multiple")
            for step in args.steps.split(","):
                if step not in STEPS:
                    raise ValueError(f"--steps: {step!r} is unknown; known: {', '.join(STEPS)}")
                decode = step == "decode"
                sizes = (args.batch, args.context) if decode else (int(data), args.chunk)
                cells.append(Cell(model, int(data), int(tensor), step, *sizes))
    return cells


def _complete(cells: list[Cell], file: Path) -> tuple[dict[str, StepWork], dict[str, str]]:
    """By the cells' ids: their work, which the file holds or a process with that many devices tells; and for those
    that the mesh cannot hold, why."""
    works, refused = {}, {}
    for line in file.read_text().splitlines() if file.exists() else ():
        kept = json.loads(line)
        works[kept["id"]] = _as_work(kept["work"])
    missing = [cell for cell in cells if cell.id not in works]
    if not missing:
        return works, refused
    devices = max(cell.data * cell.tensor for cell in missing)
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    with (
        subprocess.Popen(
            [sys.executable, "-m", "jaxengine.bench.scaling_cells"], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        ) as process,
        open(file, "a") as kept,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for number, cell in enumerate(missing, 1):
            print(f"{number} of {len(missing)}: {cell}", file=sys.stderr, flush=True)
            process.stdin.write(json.dumps(asdict(cell)) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(f"{cell} could not be lowered; the reason stands above")
            work = json.loads(answer)
            if "refused" in work:
                refused[cell.id] = work["refused"]
                print(f"left out: {work['refused']}", file=sys.stderr, flush=True)
                continue
            works[cell.id] = _as_work(work)
            kept.write(json.dumps({"id": cell.id, "cell": asdict(cell), "work": work}) + "\n")
            kept.flush()
    return works, refused


def _as_work(plain: dict[str, Any]) -> StepWork:
    given: dict[str, Any] = plain | {"exchanges": tuple(Exchange(**e) for e in plain["exchanges"])}
    return StepWork(**given)


def _row(cell: Cell, work: StepWork, machine: Machine) -> dict[str, Any]:
    predicted = predict(work, machine)
    sums = [e for e in work.exchanges if e.kind == "all-reduce"]
    others = [e for e in work.exchanges if e.kind != "all-reduce"]
    held = work.weight_bytes + work.pool_bytes
    tokens = cell.rows * cell.data
    return {
        "cell": cell.id, "model": cell.model, "data": cell.data, "tensor": cell.tensor, "step": cell.step,
        "batch": cell.batch, "tokens": cell.tokens,
        "weights GB": work.weight_bytes / 1e9, "pool GB": work.pool_bytes / 1e9,
        "fits": "yes" if held <= USABLE * machine.memory_bytes else "no",
        "sums": sum(e.times for e in sums), "sums MB": sum(e.times * e.num_bytes for e in sums) / 1e6,
        "others": sum(e.times for e in others), "others MB": sum(e.times * e.num_bytes for e in others) / 1e6,
        "matmul ms": predicted.matmul_s * 1e3, "attention ms": predicted.attention_s * 1e3,
        "exchange ms": predicted.exchange_s * 1e3, "step ms": predicted.step_s * 1e3,
        "tok/s": tokens / predicted.step_s, "tok/s/device": tokens / predicted.step_s / (cell.data * cell.tensor),
    }
