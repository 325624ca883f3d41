"""The model and engine settings that generate, chat, info and bench share."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import jaxengine
from jaxengine.checkpoint import gemma_terms_accepted
from jaxengine.cli.flags import Flag, add_flag, byte_count, given
from jaxengine.config import (
    DTYPES,
    KV_CACHE_DTYPES,
    WARMUPS,
    CacheConfig,
    CompileConfig,
    EngineConfig,
    ParallelConfig,
    SchedulerConfig,
    read_preset,
)

if TYPE_CHECKING:
    from jaxengine.engine.llm import LLM

# One entry for each field of jaxengine.config; a test holds that none is missing or left over.
FLAGS = {
    "dtype": Flag(f"numbers that the model computes in: {', '.join(DTYPES)} (auto: the checkpoint's)"),
    "seed": Flag("seed of the sampling; the same command draws the same tokens again"),
    "attention_backend": Flag("attention implementation (auto: the best for the device)"),
    "block_size": Flag("tokens in one block of the KV cache"),
    "num_blocks": Flag("size of the KV cache in blocks", ("--num-blocks", "--num-gpu-blocks-override")),
    "kv_cache_memory_bytes": Flag("size of the KV cache, e.g. 512M or 4G", parse=byte_count, metavar="BYTES"),
    "gpu_memory_utilization": Flag("on accelerators: share of the memory for weights and KV cache together"),
    "kv_cache_dtype": Flag(f"numbers in the KV cache: {', '.join(KV_CACHE_DTYPES)} (auto: the model's)"),
    "enable_prefix_caching": Flag("reuse the KV cache of prompts that begin alike"),
    "max_num_seqs": Flag("sequences that run at the same time"),
    "max_num_batched_tokens": Flag("tokens computed in one step"),
    "max_model_len": Flag("tokens of prompt and answer together (default: what the model declares)"),
    "enable_chunked_prefill": Flag("compute long prompts in pieces, between the running answers"),
    "policy": Flag("which waiting request runs next", ("--scheduling-policy",)),
    "tensor_parallel_size": Flag("devices that one model is spread over", ("--tensor-parallel-size", "-tp")),
    "data_parallel_size": Flag("copies of the model that share the requests; other limits are those of one copy",
                               ("--data-parallel-size", "-dp")),
    "warmup": Flag(f"when shapes are compiled: {', '.join(WARMUPS)}"),
    "decode_buckets": Flag("numbers of sequences that decode steps are compiled for (default: derived)"),
    "token_buckets": Flag("numbers of tokens that mixed steps are compiled for (default: derived)"),
    "cache_dir": Flag("folder of compiled code (default: the user's cache; '' turns it off)",
                      ("--compilation-cache-dir",), metavar="FOLDER"),
    "forbid_compile_after_warmup": Flag("fail instead of compiling a new shape after warm-up"),
}

_GROUPS = {
    "engine": EngineConfig, "KV cache": CacheConfig, "scheduler": SchedulerConfig, "devices": ParallelConfig,
    "compilation": CompileConfig,
}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, and every setting of the engine."""
    group = parser.add_argument_group("model")
    group.add_argument("model", metavar="MODEL", help="demo name, folder, .gguf file or hub id")
    group.add_argument("--chat-template", metavar="FILE", help="a Jinja template in place of the checkpoint's")
    add_terms_argument(group)
    group.add_argument(
        "--config", metavar="PRESET",
        help=f"settings from a .toml file, or one of {', '.join(presets())}; flags override it",
    )
    add_engine_arguments(parser)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Every setting of the engine, under the names of `FLAGS`."""
    for title, settings in groups():
        group = parser.add_argument_group(title)
        for name, annotation, default in settings:
            add_flag(group, name, annotation, default, FLAGS[name])


def add_terms_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--accept-gemma-terms", action="store_true",
        help="you accept the terms of Gemma models, https://ai.google.dev/gemma/terms",
    )


def accepts_terms(args: argparse.Namespace) -> bool:
    return args.accept_gemma_terms or gemma_terms_accepted(os.environ)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Flat engine options: the preset's, then the command line's. Raises ValueError for a wrong one."""
    options = (read_preset(_preset_path(args.config)) if args.config else {}) | given(args, FLAGS)
    EngineConfig.from_options(**options)
    return options


def read_template(args: argparse.Namespace) -> str | None:
    """The text of --chat-template's file. Raises ValueError where it cannot be read."""
    if not args.chat_template:
        return None
    try:
        return Path(args.chat_template).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"--chat-template {args.chat_template}: {reason}") from None


def open_llm(args: argparse.Namespace) -> LLM:
    """Loads MODEL as the flags say. Wrong values are told before jax is imported or a model is fetched."""
    options = engine_options(args)
    template = read_template(args)
    llm = jaxengine.LLM(args.model, chat_template=template, accept_terms=accepts_terms(args), **options)
    gc.freeze()      # what is loaded stays: a full collection over it would stop a step for some 75 ms
    return llm


def presets() -> dict[str, Path]:
    """The presets that come with the engine, by name."""
    folder = files("jaxengine") / "configs" / "engine"
    return {Path(entry.name).stem: Path(str(entry)) for entry in sorted(folder.iterdir(), key=lambda e: e.name)}


def _preset_path(name: str) -> Path:
    if name in presets():
        return presets()[name]
    if not Path(name).is_file():
        raise ValueError(f"--config {name}: no such file, and no preset of that name; presets: {', '.join(presets())}")
    return Path(name)


def groups() -> Iterator[tuple[str, list[tuple[str, Any, Any]]]]:
    """Every setting as (name, type, default), by group; a config's own fields, not the configs in it."""
    for title, part in _GROUPS.items():
        hints = get_type_hints(part)
        plain = [field for field in fields(part) if not is_dataclass(hints[field.name])]
        yield title, [(field.name, hints[field.name], field.default) for field in plain]
