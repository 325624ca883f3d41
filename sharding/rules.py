"""Logical axis names -> mesh axes. Models name what a dimension is; only this table knows where it lives."""

from jax.sharding import PartitionSpec

MODEL = ("kv", "group")     # a dimension split over the whole of tensor parallelism

RULES: dict[str | None, str | tuple[str, ...] | None] = {
    None: None,
    "tokens": None,         # flat tokens of a step
    "embed": None,          # model width: replicated
    "vocab": MODEL,
    "kv_heads": "kv",
    "q_group": "group",     # query heads that share a KV head
    "head": None,           # head width
    "ffn": MODEL,
    "blocks": None,         # blocks of the KV pool
}


def spec(*logical: str | None) -> PartitionSpec:
    """The PartitionSpec of an array whose dimensions carry these logical names (None: replicated)."""
    return PartitionSpec(*(RULES[name] for name in logical))
