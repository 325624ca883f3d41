"""GGUF tensor bytes -> numbers, through the `gguf` package's own dequantisers."""

from importlib import import_module
from typing import Any

import numpy as np

from jaxengine.checkpoint.ggml_types import GGML_TYPES

_LAYOUTS = {layout.name: layout for layout in GGML_TYPES.values()}
_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def dequantize_rows(raw: np.ndarray, kind: str, width: int) -> np.ndarray:
    """Whole rows of `width` values from their bytes, uint8[rows * bytes of a row] -> [rows, width].

    F32 and F16 are views; everything else becomes float32.
    """
    if kind in _PLAIN:
        return raw.view(_PLAIN[kind]).reshape(-1, width)
    gguf = _gguf()
    blocks = raw.reshape(-1, row_bytes(kind, width))
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])


def row_bytes(kind: str, width: int) -> int:
    """Bytes of a row of `width` values."""
    layout = _LAYOUTS[kind]
    return width // layout.block_size * layout.block_bytes


def check_readable(kind: str, where: str) -> None:
    """Raises ValueError where a type has no dequantiser (integer tensors, scratch formats)."""
    if kind in _PLAIN:
        return
    # The package has no public list; a type it cannot read raises NotImplementedError on any input.
    try:
        dequantize_rows(np.zeros(row_bytes(kind, 256), np.uint8), kind, 256)
    except (NotImplementedError, KeyError):
        raise ValueError(f"{where} has ggml type {kind}, which the gguf package cannot dequantise") from None


def _gguf() -> Any:
    try:
        return import_module("gguf")
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise ValueError("reading GGUF weights needs the gguf package: pip install jaxengine[gguf]") from None
