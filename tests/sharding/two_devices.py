"""Run by test_two_devices.py in a process of its own: the golden models on meshes of two fake CPU devices.

Prints one JSON line per (model, mesh): the largest distance from the golden logits and where the pool lives.
"""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parent.parent / "models"))

import jax
import numpy as np
from golden_models import PagedModel, difference, golden_model, run_chunked

from sharding import check_mesh, init_params, make_mesh

jax.config.update("jax_numpy_rank_promotion", "raise")


def logits_on(name: str, **axes: int) -> None:
    golden, mesh = golden_model(name), make_mesh(**axes)
    check_mesh(golden.module.param_specs(golden.cfg), mesh)
    model = PagedModel(golden, mesh)
    run_chunked(model)
    pool = model.pool.layers[0].k
    print(json.dumps({
        "model": name, **axes, "difference": difference(model),
        "pool_shape": pool.shape, "pool_shard": pool.addressable_shards[0].data.shape,
        "ffn_shard": model.params.layers[0].down.addressable_shards[0].data.shape,
    }))


def random_weights(name: str) -> None:
    """Initialisation does not depend on the mesh, and no device makes more than its shard."""
    golden = golden_model(name)
    specs = golden.module.param_specs(golden.cfg)
    whole, split = (
        init_params(specs, jax.random.key(3), "float32", make_mesh(kv=kv, devices=jax.devices()[:kv])) for kv in (1, 2)
    )
    same = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), whole, split)
    print(json.dumps({
        "init": name, "same": all(jax.tree.leaves(same)),
        "embed_shard": split.embed.addressable_shards[0].data.shape,
    }))


for name, axes in (("llama", {"kv": 2}), ("llama", {"group": 2}), ("gemma3", {"kv": 2}), ("llama_gelu", {"group": 2})):
    logits_on(name, **axes)
random_weights("qwen2")
