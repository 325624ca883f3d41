"""Whether a model's parameters can be split over a mesh, asked before anything is allocated."""

from math import prod
from typing import Any

import jax
from jax.sharding import Mesh

from sharding.params import ParamSpec
from sharding.rules import RULES


def check_mesh(specs: Any, mesh: Mesh) -> None:
    """Raises ValueError where a dimension of a tree of ParamSpecs does not divide over its mesh axes.

    The pool splits as the KV heads do, so a tree that passes has a pool that does.
    """
    for spec in jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec)):
        for name, size in zip(spec.axes, spec.shape, strict=True):
            axes = RULES[name]
            axes = () if axes is None else (axes,) if isinstance(axes, str) else axes
            parts = prod(mesh.shape[axis] for axis in axes)
            if size % parts:
                raise ValueError(
                    f"{name}: {size} cannot be split over {parts} devices (mesh axes {' x '.join(axes)}); "
                    f"choose a mesh whose {' x '.join(axes)} divides {size}"
                )
