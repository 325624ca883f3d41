"""A family's parameters -> a Hugging Face folder's safetensors: the name map read backwards."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.checkpoint.huggingface import INDEX, SINGLE
from jaxengine.checkpoint.plan import parameter_path, published_shape
from jaxengine.models.weights import source
from sharding import ParamSpec

_SHARD_BYTES = 5 * 10**9
_WORDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    parameter: jax.Array
    part: int | None            # index on the parameter's axis 0; None: the whole
    subtract_one: bool

    def values(self, dtype: Any) -> np.ndarray:
        array = np.asarray(self.parameter if self.part is None else self.parameter[self.part])
        if self.subtract_one:
            array = array.astype(np.float32) - np.float32(1)
        return np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(self.shape)


def write_safetensors(
    params: Any, family: ModuleType, cfg: Any, dtype: str, folder: Path, shard_bytes: int = _SHARD_BYTES
) -> None:
    """Writes model.safetensors, or several files of at most `shard_bytes` and their index, all in `dtype`."""
    itemsize = jnp.dtype(dtype).itemsize
    shards: list[list[_Tensor]] = [[]]
    filled = 0
    for tensor in _published(params, family, cfg):
        nbytes = prod(tensor.shape) * itemsize
        if shards[-1] and filled + nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += nbytes
    if len(shards) == 1:
        _write_file(folder / SINGLE, shards[0], dtype)
        return
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard, dtype)
    total = sum(prod(t.shape) * itemsize for shard in shards for t in shard)
    places = {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1))


def _published(params: Any, family: ModuleType, cfg: Any) -> Iterator[_Tensor]:
    leaves = {parameter_path(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    specs = jax.tree_util.tree_flatten_with_path(family.param_specs(cfg), is_leaf=lambda x: isinstance(x, ParamSpec))
    spec_of = {parameter_path(keys): spec for keys, spec in specs[0]}
    for path, entry in family.name_map(cfg).items():
        made_of = source(entry)
        shape = published_shape(spec_of[path], len(made_of.names))
        for i, name in enumerate(made_of.names):
            yield _Tensor(name, shape, leaves[path], i if len(made_of.names) > 1 else None, made_of.add_one)


def _write_file(path: Path, tensors: list[_Tensor], dtype: str) -> None:
    with path.open("wb") as file:
        _write_header(file, tensors, dtype)
        for tensor in tensors:
            # As bytes: not every dtype here has a buffer format of its own.
            file.write(tensor.values(jnp.dtype(dtype)).view(np.uint8).data)


def _write_header(file: IO[bytes], tensors: list[_Tensor], dtype: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}      # readers insist on the entry
    at = 0
    for tensor in tensors:
        end = at + prod(tensor.shape) * jnp.dtype(dtype).itemsize
        header[tensor.name] = {"dtype": _WORDS[dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)         # keeps the tensors aligned
    file.write(len(text).to_bytes(8, "little") + text)
