"""Checkpoint tensors -> a family's parameters, each placed straight to its sharding."""

from concurrent.futures import ThreadPoolExecutor
from math import prod
from os import cpu_count
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxengine.checkpoint.checkpoint import Checkpoint, TensorCheckpoint
from jaxengine.checkpoint.orbax_checkpoint import OrbaxCheckpoint
from jaxengine.checkpoint.plan import Planned, plan_parameters
from jaxengine.checkpoint.progress import weights_bar
from sharding import param_shardings

# Values converted at a time by one thread: intermediates of dequantising stay in a core's cache.
_CHUNK_VALUES = 1 << 17
_ALIGNMENT = 64          # bytes; what XLA asks of a buffer that it takes over without a copy


def load_params(
    checkpoint: Checkpoint, family: ModuleType, cfg: Any, mesh: Mesh, dtype: Any, progress: bool = True
) -> Any:
    """The family's parameter tree on the mesh, in `dtype` where a parameter does not declare its own.

    All names and shapes are checked before the first allocation. One parameter is converted at a time, in row
    slices, so host memory peaks at the loaded weights and one parameter.

    Raises ValueError naming a tensor that is missing, left over, or of another shape.
    """
    specs = family.param_specs(cfg)
    if isinstance(checkpoint, OrbaxCheckpoint):
        return checkpoint.restore(specs, dtype, mesh, progress)
    assert isinstance(checkpoint, TensorCheckpoint)
    planned, treedef = plan_parameters(checkpoint, specs, family.name_map(cfg), dtype)
    shardings = jax.tree.leaves(param_shardings(specs, mesh))
    leaves: list[jax.Array] = []
    total = sum(prod(p.shape) for p in planned)
    with ThreadPoolExecutor(min(8, cpu_count() or 1)) as pool, weights_bar(total, progress) as bar:
        for parameter, sharding in zip(planned, shardings, strict=True):
            if leaves:       # the host copy of the one before is free again
                leaves[-1].block_until_ready()
            leaves.append(jax.device_put(_convert(checkpoint, parameter, pool), sharding))
            bar.update(prod(parameter.shape))
    return jax.tree.unflatten(treedef, leaves)


def _convert(checkpoint: TensorCheckpoint, parameter: Planned, pool: ThreadPoolExecutor) -> np.ndarray:
    buffer = _aligned_empty(parameter.shape, parameter.dtype)
    parts = [buffer] if len(parameter.names) == 1 else list(buffer)
    for name, part in zip(parameter.names, parts, strict=True):
        _fill(checkpoint, name, part, parameter.add_one, pool)
    return buffer


def _fill(
    checkpoint: TensorCheckpoint, name: str, out: np.ndarray, add_one: bool, pool: ThreadPoolExecutor
) -> None:
    """Writes a tensor into `out`, of another shape and dtype but as many values, several slices at once."""
    shape = checkpoint.shape(name)
    count, width = prod(shape[:-1]), shape[-1]
    target = out.reshape(count, width)
    multiple = checkpoint.row_multiple(name)
    step = -(-max(1, _CHUNK_VALUES // width) // multiple) * multiple

    def fill_rows(start: int) -> None:
        values = checkpoint.rows(name, start, min(start + step, count))
        target[start : start + step] = values.astype(np.float32) + np.float32(1) if add_one else values

    for _ in pool.map(fill_rows, range(0, count, step)):
        pass


def _aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
