"""Resolves "auto" to an attention back end once, on the host, and says why."""

from collections.abc import Callable
from typing import Any

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention import gpu_support, tpu_support

NAMES = ("auto", "xla", "reference", "pallas_gpu", "pallas_tpu")


# Why a kernel cannot serve a need, or None where it can. "auto" takes the first that can.
KERNELS: dict[str, Callable[[Need], str | None]] = {
    "pallas_gpu": gpu_support.unsupported, "pallas_tpu": tpu_support.unsupported,
}
OWN_KERNEL = {"gpu": "pallas_gpu", "cuda": "pallas_gpu", "tpu": "pallas_tpu"}


def resolve_backend(
    name: str, *, platform: str, head_dim: int, block_size: int, dtype: Any, query_dtype: Any = None,
    group: int | None = None, compute_capability: str | None = None,
) -> tuple[str, str]:
    """-> (back end, the reason for it).

    dtype: the KV pool's; the rest as in Need. "auto" is the platform's own kernel where that can serve, else XLA,
    and the reason then says why the kernel could not. Raises ValueError, with the reason and the remedy, for a back
    end that was asked for by name and cannot serve this.
    """
    need = Need(platform, head_dim, block_size, dtype, query_dtype, group, compute_capability)
    if name not in NAMES:
        raise ValueError(f"attention_backend={name!r} is unknown; choose one of {', '.join(NAMES)}")
    if name == "auto":
        return _best(need)
    why_not = KERNELS[name](need) if name in KERNELS else None
    if why_not is not None:
        raise ValueError(f"attention_backend={name!r} cannot serve this: {why_not}; use 'auto' or 'xla'")
    if name == "reference":
        return name, "asked for by name; slow, reads every sequence's whole block table"
    return name, "asked for by name"


def _best(need: Need) -> tuple[str, str]:
    if need.platform == "cpu":
        return "xla", "the platform is cpu, and XLA's own operations are the fast form there"
    kernel = OWN_KERNEL.get(need.platform)
    if kernel is None:
        return "xla", f"there is no kernel for {need.platform}; XLA runs everywhere"
    why_not = KERNELS[kernel](need)
    if why_not is None:
        return kernel, f"the kernel for {need.platform}, which serves this model"
    return "xla", f"{kernel}, the kernel for {need.platform}, cannot serve this: {why_not}; XLA runs everywhere"
