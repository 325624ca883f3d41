"""Resolves "auto" to an attention back end, once, on the host."""

from typing import Any


def resolve_backend(name: str, *, platform: str, head_dim: int, block_size: int, dtype: Any) -> tuple[str, str]:
    """-> (back end, the reason for it). Raises ValueError for one that cannot serve this."""
    if name not in ("auto", "reference"):
        raise ValueError(f"attention_backend={name!r} is not available; known: auto, reference")
    return "reference", "the only back end so far"
