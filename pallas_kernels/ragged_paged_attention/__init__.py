"""Causal attention of a ragged batch over a paged KV cache: the contract, a readable reference, back ends."""

from pallas_kernels.ragged_paged_attention.api import AttentionMetadata, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.layout import kv_layer_spec
from pallas_kernels.ragged_paged_attention.pool import KVLayer

__all__ = ["AttentionMetadata", "KVLayer", "kv_layer_spec", "ragged_paged_attention"]
