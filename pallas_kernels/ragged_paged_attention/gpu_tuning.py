"""Sizes of the Hopper kernels by device, head width and KV dtype: data, written by the tuner (tune.py)."""

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax
import numpy as np

from pallas_kernels.ragged_paged_attention.gpu_decode import DecodeTile
from pallas_kernels.ragged_paged_attention.gpu_prefill import PrefillTile

DEFAULT_DEVICE = "NVIDIA H200"


@dataclass(frozen=True)
class Tiles:
    decode: DecodeTile
    prefill: PrefillTile


def tiles_for(head_dim: int, kv_dtype: Any, device_kind: str | None = None) -> Tiles:
    """The tuned sizes. device_kind None: of the mesh that the caller traces under. Unknown devices use the H200's."""
    tables = _tables()
    device = tables.get(device_kind or _device_kind() or DEFAULT_DEVICE, tables[DEFAULT_DEVICE])
    entry = device[f"H={head_dim} {np.dtype(kv_dtype).name}"]
    return Tiles(DecodeTile(**entry["decode"]), PrefillTile(**entry["prefill"]))


def _device_kind() -> str | None:
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return getattr(device, "device_kind", None)


@functools.cache
def _tables() -> dict[str, Any]:
    """Device kind -> "H=128 bfloat16" -> {"decode": ..., "prefill": ...}, from every file of tuned/."""
    folder = files("pallas_kernels.ragged_paged_attention") / "tuned"
    tables: dict[str, Any] = {}
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.startswith("gpu_") and file.name.endswith(".json"):
            content = json.loads(file.read_text())
            tables[content["device_kind"]] = content["tiles"]
    return tables
