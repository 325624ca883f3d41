"""Logical axis names -> mesh axes. Models name what a dimension is; only this table knows where it lives."""

from jax.sharding import PartitionSpec

DATA = "data"               # one part for each data-parallel shard
MODEL = ("kv", "group")     # a dimension split over the whole of tensor parallelism

RULES: dict[str | None, str | tuple[str, ...] | None] = {
    None: None,
    "tokens": DATA,         # flat tokens of a step, or rows of it: a shard's own, then the next one's
    "sampled": (DATA, *MODEL),      # rows that are sampled, the devices of a shard sharing its rows among them
    "embed": None,          # model width: replicated
    "vocab": MODEL,
    "kv_heads": "kv",
    "q_group": "group",     # query heads that share a KV head
    "head": None,           # head width
    "ffn": MODEL,
    "blocks": DATA,         # blocks of the KV pool: each shard has a whole pool of its own
    "slots": DATA,          # per-sequence state: each shard has slots of its own
    "shards": DATA,         # whatever there is one of, or one vector of, for each shard
}


def spec(*logical: str | None) -> PartitionSpec:
    """The PartitionSpec of an array whose dimensions carry these logical names (None: replicated)."""
    return PartitionSpec(*(RULES[name] for name in logical))
