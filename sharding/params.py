"""One declaration per parameter gives its shape, dtype, logical axes and initialiser.

A tree of ParamSpec leaves turns into a tree of abstract arrays, of shardings, or of random weights.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from sharding.rules import spec


@dataclass(frozen=True)
class ParamSpec:
    """Declares one parameter.

    `axes` names each dimension of `shape`. `init` is a standard deviation for normal weights, or
    "zeros" or "ones". `dtype` None means the model's own dtype; norms ask for float32.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: float | str = 0.02
    dtype: Any = None

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), (self.shape, self.axes)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)


def param_shardings(specs: Any, mesh: Mesh) -> Any:
    """The same tree with a NamedSharding for each leaf."""
    return jax.tree.map(lambda s: NamedSharding(mesh, spec(*s.axes)), specs, is_leaf=_is_spec)


def abstract_params(specs: Any, dtype: Any, mesh: Mesh) -> Any:
    """The same tree with a ShapeDtypeStruct (sharding included) for each leaf."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype or dtype, sharding=NamedSharding(mesh, spec(*s.axes))),
        specs,
        is_leaf=_is_spec,
    )


def init_params(specs: Any, key: jax.Array, dtype: Any, mesh: Mesh) -> Any:
    """Random weights for the tree, made leaf by leaf, each shard on its own device."""
    leaves, treedef = jax.tree.flatten(specs, is_leaf=_is_spec)
    with jax.set_mesh(mesh):
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(treedef, [
            _init_leaf(k, s.shape, s.init, s.dtype or dtype, NamedSharding(mesh, spec(*s.axes)))
            for s, k in zip(leaves, keys, strict=True)
        ])


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _init_leaf(key: jax.Array, shape: tuple[int, ...], init: float | str, dtype: Any, sharding: NamedSharding):
    # `out_sharding` has each device draw its own shard alone; the numbers do not depend on the mesh.
    if isinstance(init, str):
        return {"zeros": jnp.zeros, "ones": jnp.ones}[init](shape, dtype, out_sharding=sharding)
    return (init * jax.random.normal(key, shape, jnp.float32, out_sharding=sharding)).astype(dtype)
