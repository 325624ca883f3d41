"""The device mesh that every compiled step runs under."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, get_abstract_mesh

AXES = ("data", "kv", "group")


def axis_size(*names: str) -> int:
    """Devices along these axes of the mesh that the caller is traced or called under."""
    sizes = get_abstract_mesh().shape
    return prod(sizes[name] for name in names)


def make_mesh(
    data: int = 1, kv: int = 1, group: int = 1, devices: Sequence[Any] | None = None
) -> Mesh:
    """An explicit mesh of `data * kv * group` devices.

    Data parallelism is `data`: each shard has the whole model, and sequences of its own.
    Tensor parallelism is `kv * group`: KV heads split over `kv`, and the query heads that share one
    KV head split over `group`, so a model with fewer KV heads than devices needs no copies of them.
    On one device every axis has size one and the program is the same.

    Raises ValueError when there are fewer devices than the mesh asks for.
    """
    wanted = data * kv * group
    devices = jax.devices() if devices is None else devices
    if len(devices) < wanted:
        raise ValueError(f"mesh data={data} x kv={kv} x group={group} needs {wanted} devices, found {len(devices)}")
    return jax.make_mesh((data, kv, group), AXES, axis_types=(AxisType.Explicit,) * 3, devices=devices[:wanted])
