"""Meshes, logical axes and parameter declarations. Depends on jax alone."""

from sharding.check import check_mesh
from sharding.mesh import axis_size, make_mesh
from sharding.params import ParamSpec, abstract_params, init_params, param_shardings
from sharding.rules import DATA, MODEL, spec

__all__ = [
    "DATA",
    "MODEL",
    "ParamSpec",
    "abstract_params",
    "axis_size",
    "check_mesh",
    "init_params",
    "make_mesh",
    "param_shardings",
    "spec",
]
