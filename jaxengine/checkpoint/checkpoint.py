"""What every checkpoint format presents: a published config and tensors under their Hugging Face names."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

_DTYPES = ("float32", "bfloat16", "float16")
_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Headers are read and checked; no tensor is.

    kind: "huggingface", "gguf" or "orbax". dtype: what `--dtype auto` means for it. metadata: of a GGUF file
    (its vocabulary above all), kept when such a file is converted; else empty.
    """

    path: Path
    kind: str
    config: dict[str, Any]                                # as config.json holds it
    dtype: str
    generation_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)


class TensorCheckpoint(Checkpoint, ABC):
    """A checkpoint of published tensors, to be fused into parameters while they load."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, as (out, in) for a weight."""

    @abstractmethod
    def stored_dtype(self, name: str) -> str:
        """How a tensor is stored, in the format's own words: "BF16", "Q4_K", ..."""

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the tensor seen as [product of leading dimensions, last dimension]."""

    def row_multiple(self, name: str) -> int:
        """`start` and `stop` of `rows` must be multiples of this."""
        return 1

    def read(self, name: str) -> np.ndarray:
        """The whole tensor; dequantised ones are float32, others keep their dtype."""
        shape = self.shape(name)
        return self.rows(name, 0, prod(shape[:-1])).reshape(shape)


def check_config(config: Any, where: str, num_tensors: int) -> dict[str, Any]:
    """A config whose sizes can be trusted to be sane; nothing is allocated on an absurd one.

    Raises ValueError naming the field.
    """
    if not isinstance(config, dict):
        raise ValueError(f"{where} must hold a JSON object, found {type(config).__name__}")
    for key in _COUNTS:
        value = config.get(key)
        if value is not None and (type(value) is not int or not 0 < value < 2**31):
            raise ValueError(f"{where}: {key}={value!r} must be a whole number of at least 1")
    layers = config.get("num_hidden_layers") or 0
    if layers > num_tensors:
        raise ValueError(f"{where}: num_hidden_layers={layers}, but there are only {num_tensors} tensors")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ValueError(f"{where}: architectures={architectures!r} must be a list of names")
    return config


def default_dtype(config: dict[str, Any], stored: str, where: str) -> str:
    """The dtype that a config declares, else the one that its tensors are stored in."""
    name = config.get("dtype") or config.get("torch_dtype") or stored
    if name not in _DTYPES:
        raise ValueError(f"{where}: dtype={name!r} is not supported; known: {', '.join(_DTYPES)}")
    return name
