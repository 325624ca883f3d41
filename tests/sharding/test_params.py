"""Parameter declarations: shardings, abstract arrays, random weights, and meshes that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxengine.config import ParallelConfig
from jaxengine.engine.load import engine_mesh
from jaxengine.models import llama
from jaxengine.models.registry import family
from sharding import ParamSpec, abstract_params, check_mesh, init_params, make_mesh, param_shardings

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 48,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "max_position_embeddings": 64,
}


def mesh_of(**sizes):
    names = ("data", "kv", "group")
    return AbstractMesh(tuple(sizes.get(n, 1) for n in names), names, axis_types=(AxisType.Explicit,) * 3)


def specs():
    return llama.param_specs(family(CONFIG).Config.from_published(CONFIG))


def test_a_mesh_that_divides_everything_passes():
    check_mesh(specs(), mesh_of(kv=3))
    check_mesh(specs(), mesh_of(group=2))


@pytest.mark.parametrize(("axes", "message"), [
    ({"kv": 2}, "kv_heads: 3 cannot be split over 2 devices"),
    ({"group": 4}, "q_group: 2 cannot be split over 4 devices"),
])
def test_heads_that_do_not_divide_are_refused_with_both_numbers(axes, message):
    with pytest.raises(ValueError, match=message):
        check_mesh(specs(), mesh_of(**axes))


def test_a_vocabulary_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="vocab: 97 cannot be split over 2 devices"):
        check_mesh({"embed": ParamSpec((97, 8), ("vocab", "embed"))}, mesh_of(kv=2))


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"needs 4096 devices, found \d"):
        make_mesh(kv=4096)


def test_the_three_trees_agree():
    mesh, tree = make_mesh(), specs()
    abstract = abstract_params(tree, jnp.bfloat16, mesh)
    real = init_params(tree, jax.random.key(0), jnp.bfloat16, mesh)
    shardings = param_shardings(tree, mesh)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), abstract) == jax.tree.map(lambda a: (a.shape, a.dtype), real)
    assert jax.tree.map(lambda a: a.sharding, real) == shardings == jax.tree.map(lambda a: a.sharding, abstract)
    assert shardings.layers[0].wq.spec == PartitionSpec("kv", "group", None, None)


def test_initialisers_give_what_they_say():
    tree = {
        "normal": ParamSpec((400, 100), ("ffn", "embed"), init=0.5), "ones": ParamSpec((4,), ("embed",), init="ones"),
        "zeros": ParamSpec((4,), ("embed",), init="zeros", dtype="float32"),
    }
    made = init_params(tree, jax.random.key(1), jnp.bfloat16, make_mesh())
    values = np.asarray(made["normal"], np.float32)
    assert abs(values.std() - 0.5) < 0.01
    assert abs(values.mean()) < 0.01
    assert (made["ones"] == 1).all()
    assert (made["zeros"] == 0).all()
    assert made["zeros"].dtype == jnp.float32
    assert made["ones"].dtype == jnp.bfloat16


@pytest.mark.parametrize(("size", "heads", "kv_heads", "works"), [
    (2, 9, 3, "1, 3, 9"),            # SmolLM2
    (8, 12, 4, "1, 2, 3, 4, 6, 12"),
    (16, 8, 2, "1, 2, 4, 8"),
])
def test_an_engine_names_the_sizes_that_its_heads_can_be_split_over(size, heads, kv_heads, works):
    message = f"tensor_parallel_size={size} .* {heads} query heads over {kv_heads} KV heads; choose one of {works}$"
    with pytest.raises(ValueError, match=message):
        engine_mesh(ParallelConfig(tensor_parallel_size=size), heads, kv_heads)
