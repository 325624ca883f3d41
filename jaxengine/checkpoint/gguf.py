"""The header of a GGUF file, parsed directly: metadata and where each tensor lies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
Nothing is allocated on a length or count that the file's own size does not bear out.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.checkpoint.ggml_types import GGML_TYPES, GGMLType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_MAX_DIMS = 4            # ggml's own limit
_MAX_NESTING = 3         # arrays of arrays; nobody writes more than one level
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}
_FORMATS = {code: struct.Struct("<" + np.dtype(name).char) for code, name in _SCALARS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor's place. `shape` is row-major, a weight's is (out, in); `offset` is in bytes of the file."""

    name: str
    shape: tuple[int, ...]
    type: str                 # ggml's name, as "Q4_1"
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A parsed file. The bytes stay mapped (shared, read-only pages) for as long as this object lives."""

    path: Path
    metadata: dict[str, Any]             # numeric arrays are numpy arrays, arrays of strings are lists
    tensors: dict[str, GGUFTensor]
    data: mmap.mmap

    def raw(self, tensor: GGUFTensor) -> np.ndarray:
        """The tensor's bytes, uint8[nbytes], a view of the mapped file."""
        return np.frombuffer(self.data, np.uint8, tensor.nbytes, tensor.offset)


def read_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Parses a GGUF file's header. Every inconsistency is a ValueError naming the file and what is wrong."""
    path = Path(path)
    size = path.stat().st_size
    if size < 24:
        raise ValueError(f"{path} is not a GGUF file: {size} bytes are fewer than its fixed header has")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(data, path)
    num_tensors, num_entries = _fixed_header(cursor)
    metadata = _metadata(cursor, num_entries)
    tensors = _tensors(cursor, num_tensors, _alignment(metadata, path))
    return GGUFFile(path, metadata, tensors, data)


class _Cursor:
    """Reads forward through the header; every step is checked against the file's end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.size, self.at = data, path, len(data), 0

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.path}: {what} (at byte {self.at} of {self.size})")

    def unpack(self, form: struct.Struct) -> Any:
        if self.size - self.at < form.size:
            raise self.fail("the header is cut short")
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def need(self, count: int, each: int, what: str) -> None:
        if count * each > self.size - self.at:
            raise self.fail(f"{what} claims {count} entries, more than the rest of the file can hold")

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        """`count` strings. One tight loop: a vocabulary has some 260,000."""
        data, size, at, length_of = self.data, self.size, self.at, _U64.unpack_from
        values = []
        try:
            for _ in range(count):
                (length,) = length_of(data, at)
                self.at = at
                at += 8 + length
                if at > size:
                    raise self.fail(f"a string claims {length} bytes, more than the rest of the file holds")
                values.append(data[at - length : at].decode())
        except struct.error:
            raise self.fail("the header is cut short within a string") from None
        except UnicodeDecodeError as error:
            raise self.fail(f"a string is not UTF-8: {error.reason}") from None
        self.at = at
        return values


def _fixed_header(cursor: _Cursor) -> tuple[int, int]:
    """Checks magic and version; returns the claimed numbers of tensors and of metadata entries."""
    if cursor.data[:4] != MAGIC:
        raise ValueError(f"{cursor.path} is not a GGUF file: it begins with {cursor.data[:4]!r}")
    cursor.at = 4
    version = cursor.unpack(_U32)
    if version and version & 0xFFFF == 0:
        raise ValueError(f"{cursor.path} is a big-endian GGUF file; only little-endian ones are read")
    if version not in VERSIONS:
        raise ValueError(f"{cursor.path} has GGUF version {version}; supported: {VERSIONS}")
    num_tensors, num_entries = cursor.unpack(_U64), cursor.unpack(_U64)
    cursor.need(num_entries, 8 + 4 + 1, "the metadata")
    cursor.need(num_tensors, 8 + 4 + 4 + 8, "the tensor table")
    return num_tensors, num_entries


def _metadata(cursor: _Cursor, num_entries: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.text()
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} appears twice")
        metadata[key] = _value(cursor, cursor.unpack(_U32), key, 0)
    return metadata


def _value(cursor: _Cursor, code: int, key: str, depth: int) -> Any:
    if code in _FORMATS:
        return cursor.unpack(_FORMATS[code])
    if code == _STRING:
        return cursor.text()
    if code != _ARRAY or depth > _MAX_NESTING:
        raise cursor.fail(f"metadata key {key!r} has unknown value type {code}")
    element, count = cursor.unpack(_U32), cursor.unpack(_U64)
    if element in _SCALARS:
        dtype = np.dtype(_SCALARS[element])
        cursor.need(count, dtype.itemsize, f"metadata array {key!r}")
        values = np.frombuffer(cursor.data, dtype, count, cursor.at).copy()
        cursor.at += values.nbytes
        return values
    if element == _STRING:
        cursor.need(count, 8, f"metadata array {key!r}")
        return cursor.texts(count)
    cursor.need(count, 12, f"metadata array {key!r}")
    return [_value(cursor, element, key, depth + 1) for _ in range(count)]


def _alignment(metadata: dict[str, Any], path: Path) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"{path}: general.alignment={alignment!r} must be a power of two")
    return alignment


def _tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
    entries = [_tensor_entry(cursor) for _ in range(num_tensors)]
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise ValueError(f"{cursor.path}: tensor {name!r} appears twice")
        if offset % alignment:
            raise ValueError(f"{cursor.path}: tensor {name!r} has offset {offset}, not {alignment}-aligned")
        nbytes = _num_bytes(cursor.path, name, shape, kind)
        tensors[name] = GGUFTensor(name, shape, kind.name, start + offset, nbytes)
    _check_places(cursor.path, cursor.size, list(tensors.values()))
    return tensors


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLType, int]:
    name = cursor.text()
    num_dims = cursor.unpack(_U32)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} claims {num_dims} dimensions; 1 to {_MAX_DIMS} are possible")
    dims = [cursor.unpack(_U64) for _ in range(num_dims)]
    code = cursor.unpack(_U32)
    if code not in GGML_TYPES:
        raise cursor.fail(f"tensor {name!r} has unknown ggml type {code}")
    return name, tuple(reversed(dims)), GGML_TYPES[code], cursor.unpack(_U64)


def _num_bytes(path: Path, name: str, shape: tuple[int, ...], kind: GGMLType) -> int:
    count = 1
    for dim in shape:
        count *= dim
    if count == 0 or shape[-1] % kind.block_size:
        raise ValueError(
            f"{path}: tensor {name!r} of type {kind.name} has shape {shape}; "
            f"rows must be whole blocks of {kind.block_size}"
        )
    return count // kind.block_size * kind.block_bytes


def _check_places(path: Path, size: int, tensors: list[GGUFTensor]) -> None:
    tensors = sorted(tensors, key=lambda t: t.offset)
    for tensor in tensors:
        if tensor.offset + tensor.nbytes > size:
            raise ValueError(
                f"{path} is cut short or damaged: tensor {tensor.name!r} ends at byte "
                f"{tensor.offset + tensor.nbytes}, the file at {size}"
            )
    for tensor, following in pairwise(tensors):
        if tensor.offset + tensor.nbytes > following.offset:
            raise ValueError(f"{path}: tensors {tensor.name!r} and {following.name!r} overlap")
