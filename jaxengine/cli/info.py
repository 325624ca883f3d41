"""Loads a model and shows its configuration, how memory is shared out, and what is compiled.

The memory plan says how the size of the KV cache was reckoned. The compile ledger lists every executable that
the settings can need: its shapes before it is compiled, seconds and bytes afterwards.

  jaxengine info smollm2-135m-instruct
  jaxengine info smollm2-135m-instruct --warmup full --max-num-seqs 8 --kv-cache-memory-bytes 512M
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from itertools import groupby
from textwrap import indent
from typing import TYPE_CHECKING, Any

from jaxengine.cli.engine_flags import add_model_arguments, open_llm
from jaxengine.types import SamplingParams

if TYPE_CHECKING:
    from jaxengine.engine.llm import LLM

USAGE = "MODEL [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    with open_llm(args) as llm:
        facts = _facts(args.model, llm)
        if args.json:
            print(json.dumps(facts, ensure_ascii=False))
            return 0
        _print_section("model", facts["model"])
        _print_section("engine", facts["engine"])
        _print_section("sampling defaults", facts["sampling_defaults"])
        print(f"memory plan\n{indent(str(llm.engine.memory_plan), '  ')}\n")
        print(f"compile ledger\n{indent(llm.engine.ledger.table(), '  ')}")
    return 0


def _facts(name: str, llm: LLM) -> dict[str, Any]:
    engine, runner = llm.engine, llm.engine.runner
    device = runner.mesh.devices.flat[0]
    plan = engine.memory_plan
    return {
        "model": {
            "name": name,
            **dataclasses.asdict(runner.cfg),
            "eos_token_ids": sorted(engine.eos_token_ids),
            "chat_template": llm.tokenizer.chat_template is not None,
        },
        "engine": {
            "device": f"{runner.mesh.devices.size} x {device.device_kind}",
            "max_model_len": engine.max_model_len,
            "attention": f"{runner.backend}: {runner.backend_reason}",
            "compilation_cache": str(runner.cache_folder or "off"),
        },
        "sampling_defaults": _changed(llm.default_sampling_params()),
        "memory": dataclasses.asdict(plan) | {"pool_bytes": plan.pool_bytes, "pool_tokens": plan.pool_tokens},
        "executables": engine.ledger.rows(),
    }


def _changed(params: SamplingParams) -> dict[str, Any]:
    """The fields in which a checkpoint's recommendation departs from SamplingParams' own defaults."""
    plain = dataclasses.asdict(SamplingParams())
    return {name: value for name, value in dataclasses.asdict(params).items() if value != plain[name]}


def _print_section(title: str, values: dict[str, Any]) -> None:
    print(title)
    for name, value in values.items():
        print(f"  {name:<24} {_brief(value)}")
    print("" if values else "  (none)\n")


def _brief(value: Any) -> str:
    """A value on one line; a per-layer tuple as its runs: '512 x 5, None x 1'."""
    if not isinstance(value, (tuple, list)) or len(value) < 4:
        return str(value)
    runs = [(item, sum(1 for _ in group)) for item, group in groupby(value)]
    return ", ".join(f"{item} x {count}" for item, count in runs)
