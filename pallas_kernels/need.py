"""What a model asks of an attention back end: the facts that decide whether a kernel can serve it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """Facts that are not known are None, and then decide nothing.

    platform: "cpu", "gpu" ("cuda" and "rocm" too) or "tpu". kv_dtype: the KV pool's. group: query heads that share a
    KV head on one device. compute_capability: of an NVIDIA GPU, as "9.0".
    """

    platform: str
    head_dim: int
    block_size: int
    kv_dtype: Any
    query_dtype: Any = None
    group: int | None = None
    compute_capability: str | None = None
