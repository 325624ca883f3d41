"""Compiled steps by themselves, with random weights: decode steps and chunks of a prompt, beside their floor.

  jaxengine bench step --model qwen3-0.6b --device gpu
  jaxengine bench step --model tiny
"""

from __future__ import annotations

import argparse

import jax

from jaxengine.bench.chip import steps
from jaxengine.bench.chip.rates import measure_rates
from jaxengine.bench.options import add_report_arguments, repeats
from jaxengine.bench.report import Report, finish
from pallas_kernels.backend import NAMES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser, repeats=20)
    group = parser.add_argument_group("steps")
    group.add_argument("--model", default="tiny", metavar="NAME", help="tiny, of configs/experiments, or a config.json")
    group.add_argument("--device", choices=("any", "gpu", "tpu"), default="any", help="refuse to run elsewhere [any]")
    group.add_argument("--attention-backend", choices=NAMES, default="auto", help="attention implementation [auto]")


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


def measure(args: argparse.Namespace) -> Report:
    """Raises ValueError where the device is not the one that --device names."""
    check_device(args.device)
    tiny = args.model == "tiny"
    rates = measure_rates(tiny)
    loads = steps.TINY_LOADS if tiny else steps.LOADS[::2] if args.short else steps.LOADS
    rows = list(steps.measure(args.model, loads, rates, args.attention_backend, repeats(args)))
    return Report("step", rows, {"copy TB/s": rates.copy / 1e12, "matmul TFLOP/s": rates.matmul / 1e12})


def check_device(wanted: str) -> None:
    found = jax.devices()[0].platform
    if wanted not in ("any", found):
        raise ValueError(f"--device {wanted}: jax found a {found}; install its plugin (make setup ACCELERATOR=cuda13)")
