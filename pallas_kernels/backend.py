"""Resolves "auto" to an attention back end once, on the host, and says why."""

from typing import Any

NAMES = ("auto", "xla", "reference", "pallas_gpu", "pallas_tpu")
PALLAS_PLATFORMS = {"pallas_gpu": "gpu", "pallas_tpu": "tpu"}


def resolve_backend(name: str, *, platform: str, head_dim: int, block_size: int, dtype: Any) -> tuple[str, str]:
    """-> (back end, the reason for it).

    platform: "cpu", "gpu" ("cuda" and "rocm" too) or "tpu". dtype: the KV pool's. Raises ValueError, with the
    reason and the remedy, for a back end that was asked for by name and cannot serve this.
    """
    if name not in NAMES:
        raise ValueError(f"attention_backend={name!r} is unknown; choose one of {', '.join(NAMES)}")
    if name in PALLAS_PLATFORMS:
        raise ValueError(
            f"attention_backend={name!r} is not available yet in this version; use 'auto' or 'xla'"
        )
    if name == "reference":
        return name, "asked for by name; slow, reads every sequence's whole block table"
    if name == "xla":
        return name, "asked for by name"
    if platform == "cpu":
        return "xla", "the platform is cpu, and XLA's own operations are the fast form there"
    return "xla", f"no kernel for {platform} is available yet in this version; XLA runs everywhere"
