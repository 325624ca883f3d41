"""A Hugging Face folder: config.json, and safetensors in one file or several with an index."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.checkpoint.checkpoint import TensorCheckpoint, check_config, default_dtype
from jaxengine.checkpoint.gguf_vocabulary import read_vocabulary
from jaxengine.checkpoint.safetensors import SafeTensorsFile, read_safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float32"}


@dataclass(frozen=True)
class HuggingFaceCheckpoint(TensorCheckpoint):
    files: dict[str, SafeTensorsFile] = field(kw_only=True, repr=False)     # by tensor name

    def names(self) -> Iterable[str]:
        return self.files.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.files[name].tensors[name].shape

    def stored_dtype(self, name: str) -> str:
        return self.files[name].tensors[name].dtype

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        array = self.files[name].array(name)
        return array.reshape(-1, array.shape[-1])[start:stop]

    def read(self, name: str) -> np.ndarray:
        return self.files[name].array(name)


def open_huggingface(folder: Path) -> HuggingFaceCheckpoint:
    """Opens a folder; all headers are checked, no tensor is read."""
    config = read_json(folder / "config.json")
    if isinstance(config, dict) and config.get("quantization_config"):
        quantization = config["quantization_config"]
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else quantization
        raise ValueError(f"{folder} is quantised ({method}), which is not supported; use another form")
    files = _tensor_files(folder)
    check_config(config, str(folder / "config.json"), len(files))
    generation = folder / "generation_config.json"
    return HuggingFaceCheckpoint(
        folder, "huggingface", config, default_dtype(config, _stored(files), str(folder / "config.json")),
        generation_config=read_json(generation) if generation.is_file() else {},
        metadata=read_vocabulary(folder),
        files=files,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError where it is missing or anything else."""
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value


def _tensor_files(folder: Path) -> dict[str, SafeTensorsFile]:
    """Tensor name -> the file that holds it."""
    if (folder / INDEX).is_file():
        return _sharded(folder, read_json(folder / INDEX).get("weight_map"))
    found = sorted(folder.glob("*.safetensors"))
    single = folder / SINGLE if (folder / SINGLE).is_file() else found[0] if len(found) == 1 else None
    if single is None:
        hint = f"{len(found)} of them and no {INDEX}" if found else "none; .bin and .pt files are not read"
        raise ValueError(f"{folder} must have {SINGLE}, or several *.safetensors with {INDEX}; found {hint}")
    file = read_safetensors(single)
    return dict.fromkeys(file.tensors, file)


def _sharded(folder: Path, weight_map: Any) -> dict[str, SafeTensorsFile]:
    where = folder / INDEX
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ValueError(f"{where}: weight_map must map each tensor to a file name")
    shards = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise ValueError(f"{where} names {shard!r}; it must be a .safetensors file of this folder")
        if not (folder / shard).is_file():
            raise ValueError(f"{where} names {shard!r}, which is not in the folder")
        shards[shard] = read_safetensors(folder / shard)
    for name, shard in weight_map.items():
        if name not in shards[shard].tensors:
            raise ValueError(f"{where} places {name!r} in {shard!r}, which does not hold it")
    for shard, file in shards.items():
        for name in file.tensors:
            if weight_map.get(name) != shard:
                raise ValueError(f"{where}: {shard!r} holds {name!r}, which the index does not place there")
    return {name: shards[shard] for name, shard in weight_map.items()}


def _stored(files: dict[str, SafeTensorsFile]) -> str:
    """The dtype of the largest tensor."""
    if not files:
        return "float32"
    largest = max((file.tensors[name] for name, file in files.items()), key=lambda t: t.nbytes)
    return _STORED.get(largest.dtype, "bfloat16")
