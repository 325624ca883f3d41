"""The header of a safetensors file, parsed directly, so that every dtype loads and no size is trusted unseen.

Format: https://github.com/huggingface/safetensors#format (length, JSON header, contiguous tensors).
"""

import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("<u1"), "I8": np.dtype("<i1"), "U16": np.dtype("<u2"), "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "U64": np.dtype("<u8"), "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_MAX_HEADER = 100_000_000      # bytes; the format's own limit


@dataclass(frozen=True)
class SafeTensor:
    """One tensor's place; `offset` is in bytes from the file's start."""

    shape: tuple[int, ...]
    dtype: str                 # the format's word, as "BF16"
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SafeTensorsFile:
    """A parsed file. The bytes stay mapped (shared, read-only pages) for as long as this object lives."""

    path: Path
    tensors: dict[str, SafeTensor]
    data: mmap.mmap

    def array(self, name: str) -> np.ndarray:
        """The tensor as a view of the mapped file."""
        tensor = self.tensors[name]
        dtype = DTYPES[tensor.dtype]
        values = np.frombuffer(self.data, np.uint8, tensor.nbytes, tensor.offset)
        return values.view(dtype).reshape(tensor.shape)


def read_safetensors(path: str | os.PathLike[str]) -> SafeTensorsFile:
    """Parses a safetensors file's header. Every inconsistency is a ValueError naming it."""
    path = Path(path)
    size = path.stat().st_size
    if size < 8:
        raise ValueError(f"{path} is cut short: {size} bytes cannot hold a safetensors header")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER):
            raise ValueError(
                f"{path} is cut short or damaged: its header claims {length} bytes, the file has {size} "
                f"(and {_MAX_HEADER} are the most that a header may have)"
            )
        header = _parse(file.read(length), path)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensors = {name: _tensor(name, entry, 8 + length, path) for name, entry in header.items()}
    _check_places(path, size, 8 + length, tensors)
    return SafeTensorsFile(path, tensors, data)


def _parse(header: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(header.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:      # includes bad UTF-8 and bad JSON
        raise ValueError(f"{path}: the safetensors header is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: the header must be a JSON object, found {type(parsed).__name__}")
    parsed.pop("__metadata__", None)
    return parsed


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key!r} appears twice")
        values[key] = value
    return values


def _tensor(name: str, entry: Any, start: int, path: Path) -> SafeTensor:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"{path}: tensor {name!r} must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{path}: tensor {name!r} has dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if not _are_sizes(shape):
        raise ValueError(f"{path}: tensor {name!r} has shape {shape!r}; sizes must be whole and not negative")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{path}: tensor {name!r} has data_offsets {offsets!r}; [begin, end] is needed")
    nbytes = prod(shape) * DTYPES[dtype].itemsize
    if nbytes != offsets[1] - offsets[0]:
        raise ValueError(
            f"{path}: tensor {name!r} of {dtype}{shape} needs {nbytes} bytes, but its data_offsets span "
            f"{offsets[1] - offsets[0]}"
        )
    return SafeTensor(tuple(shape), dtype, start + offsets[0], nbytes)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_places(path: Path, size: int, start: int, tensors: dict[str, SafeTensor]) -> None:
    """The format leaves no gap between tensors, lets none overlap, and ends with the last one."""
    end, last = start, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset + tensor.nbytes > size:
            raise ValueError(
                f"{path} is cut short or damaged: tensor {name!r} ends at byte "
                f"{tensor.offset + tensor.nbytes}, the file at {size}"
            )
        if tensor.offset != end:
            relation = "overlaps" if tensor.offset < end else "leaves a gap after"
            raise ValueError(f"{path}: tensor {name!r} {relation} {last}")
        end, last = tensor.offset + tensor.nbytes, repr(name)
    if end != size:
        raise ValueError(f"{path} is damaged: its tensors end at byte {end}, the file at {size}")
