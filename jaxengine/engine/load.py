"""From a model's name to a running engine: checkpoint, configuration, mesh, weights, tokenizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from jaxengine.checkpoint import Checkpoint, load_params, open_checkpoint
from jaxengine.config import EngineConfig, ParallelConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.runner import Runner
from jaxengine.generation_defaults import default_sampling
from jaxengine.models.registry import family
from jaxengine.tokenizer import load_tokenizer
from sharding import check_mesh, make_mesh


@dataclass(frozen=True)
class LoadedModel:
    """An engine and what the checkpoint says about using it."""

    name: str
    engine: Engine
    checkpoint: Checkpoint
    sampling_defaults: dict[str, Any]     # from generation_config.json


def load_engine(
    model: str, config: EngineConfig, *, chat_template: str | None = None, accept_terms: bool = False,
    progress: bool = True,
) -> LoadedModel:
    """Opens a demo name, a folder, a .gguf file or a hub id, and makes an engine of it.

    Compilation starts before the weights are read and goes on beside it. Raises ValueError for a model
    that cannot be served, naming what is wrong.
    """
    checkpoint = open_checkpoint(model, accept_terms=accept_terms, progress=progress)
    module = family(checkpoint.config)
    cfg = module.Config.from_published(checkpoint.config)
    dtype = jnp.dtype(checkpoint.dtype if config.dtype == "auto" else config.dtype)
    max_model_len = _max_model_len(config, cfg)
    mesh = engine_mesh(config.parallel, cfg.num_heads, cfg.num_kv_heads)
    check_mesh(module.param_specs(cfg), mesh)
    runner = Runner(module, cfg, config, mesh, dtype, max_model_len)
    runner.start_compiling()
    try:
        tokenizer = load_tokenizer(checkpoint, chat_template)
        runner.load(load_params(checkpoint, module, cfg, mesh, dtype, progress=progress))
    except BaseException:
        runner.close()
        raise
    engine = Engine(runner, config, max_model_len, tokenizer, tokenizer.eos_token_ids)
    return LoadedModel(model, engine, checkpoint, default_sampling(checkpoint.generation_config))


def _max_model_len(config: EngineConfig, cfg: Any) -> int:
    wanted = config.scheduler.max_model_len
    if wanted is not None and wanted > cfg.max_position_embeddings:
        raise ValueError(f"max_model_len={wanted} is longer than the model's {cfg.max_position_embeddings} positions")
    return wanted or cfg.max_position_embeddings


def engine_mesh(parallel: ParallelConfig, num_heads: int, num_kv_heads: int) -> Mesh:
    """Splits KV heads as far as they go, then the query heads that share one.

    Raises ValueError for a tensor_parallel_size that the heads cannot be split over, naming those that work.
    """
    size, heads = parallel.tensor_parallel_size, num_heads // num_kv_heads
    kv = math.gcd(size, num_kv_heads)
    if heads % (size // kv):
        works = [n for n in range(1, num_heads + 1) if heads % (n // math.gcd(n, num_kv_heads)) == 0]
        raise ValueError(
            f"tensor_parallel_size={size} cannot split the model's {num_heads} query heads over {num_kv_heads} KV "
            f"heads; choose one of {', '.join(map(str, works))}"
        )
    return make_mesh(parallel.data_parallel_size, kv, size // kv)
