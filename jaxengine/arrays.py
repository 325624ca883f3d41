"""Device pytrees that a compiled step takes and returns.

Shapes: B sequences in the bucket, T flat tokens in the bucket, L layers.
"""

import jax
from flax import struct

from pallas_kernels.ragged_paged_attention import AttentionMetadata, KVLayer


@struct.dataclass
class StepBatch:
    """A ragged batch of tokens, padded to its bucket.

    Padding tokens have position 0 and write to block 0, the null block, which nobody reads; padding
    sequences have kv_lens 0 and no tokens.

    Under data parallelism every array holds the shards' parts one after another, each padded to the same
    bucket, and what they say (block ids, offsets in `cu_q_lens`) is local to the shard.
    `attention.num_decodes` has one number a shard.
    """

    token_ids: jax.Array           # int32[T]
    positions: jax.Array           # int32[T]
    attention: AttentionMetadata
    # Tokens of every sequence where all have the same number (1 in a decode step); None for a mixed batch.
    max_q_len: int | None = struct.field(pytree_node=False, default=None)
    # Resolved once on the host: which attention back end the step is compiled with.
    attention_backend: str = struct.field(pytree_node=False, default="reference")


@struct.dataclass
class KVPool:
    """The preallocated KV cache: one entry per layer, each with the blocks on axis 0."""

    layers: tuple[KVLayer, ...]
