"""Engines to measure: of a checkpoint, or of random weights for a config alone.

Random weights compute at the speed of real ones, so sizes can be measured whose weights are not at hand.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.load import engine_mesh, load_engine
from jaxengine.engine.runner import Runner
from jaxengine.models.registry import family
from sharding import check_mesh, init_params

RANDOM = "random:"


def open_engine(model: str, options: dict[str, Any], accept_terms: bool = False) -> Engine:
    """The engine of a model name, or of random weights for "random:CONFIG"."""
    config = EngineConfig.from_options(**options)
    if model.startswith(RANDOM):
        return random_engine(read_published(model.removeprefix(RANDOM)), config)
    return load_engine(model, config, accept_terms=accept_terms, progress=False).engine


def random_engine(published: dict[str, Any], config: EngineConfig, seed: int = 0) -> Engine:
    """An engine without a tokenizer whose weights are drawn from `seed`; `published` is a config.json's content."""
    module = family(published)
    cfg = module.Config.from_published(published)
    dtype = jnp.dtype(published.get("torch_dtype", "bfloat16") if config.dtype == "auto" else config.dtype)
    max_model_len = config.scheduler.max_model_len or cfg.max_position_embeddings
    mesh = engine_mesh(config.parallel, cfg.num_heads, cfg.num_kv_heads)
    check_mesh(module.param_specs(cfg), mesh)
    runner = Runner(module, cfg, config, mesh, dtype, max_model_len)
    runner.start_compiling()
    runner.load(init_params(module.param_specs(cfg), jax.random.key(seed), dtype, mesh))
    return Engine(runner, config, max_model_len)


def read_published(name: str) -> dict[str, Any]:
    """A config.json (or the same keys as TOML) by path, or by its name in configs/experiments."""
    known = experiments()
    path = known[name] if name in known else Path(name)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ValueError(f"model=random:{name}: no such config; known by name: {', '.join(sorted(known))}")
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())


def experiments() -> dict[str, Path]:
    """The model sizes that come with the engine, by name."""
    folder = files("jaxengine") / "configs" / "experiments"
    return {Path(entry.name).stem: Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".toml")}


def sibling(engine: Engine, *, cache: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None) -> Engine:
    """Another engine over the same weights, pool and executables, with other host settings.

    Only one of the two may have requests at a time, and what the one has in its prefix cache the other overwrites.
    """
    config = replace(
        engine.config,
        cache=replace(engine.config.cache, **(cache or {})),
        scheduler=replace(engine.config.scheduler, **(scheduler or {})),
    )
    return Engine(engine.runner, config, engine.max_model_len, engine.tokenizer, engine.eos_token_ids)
