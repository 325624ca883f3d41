"""The sizes that an engine's steps are padded to, from its settings."""

from __future__ import annotations

from jaxengine.config import EngineConfig
from jaxengine.engine.step import SCORE_ROWS, StepBuckets
from jaxengine.scheduler.buckets import decode_buckets, row_buckets, token_buckets


def plan_buckets(config: EngineConfig, blocks_per_seq: int, tensor_parallel_size: int = 1) -> StepBuckets:
    """Raises ValueError where the settings' own buckets do not reach the scheduler's limits.

    The devices of a shard share the rows that are sampled or scored, so those sizes are multiples of them.
    """
    seqs, tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    decode = config.compile.decode_buckets or decode_buckets(seqs)
    mixed = config.compile.token_buckets or token_buckets(tokens, seqs)
    if decode[-1] < seqs:
        raise ValueError(f"decode_buckets={decode} must reach max_num_seqs={seqs}")
    if mixed[-1] < tokens:
        raise ValueError(f"token_buckets={mixed} must reach max_num_batched_tokens={tokens}")
    rows = row_buckets(seqs)
    sample = sorted({_multiple(size, tensor_parallel_size) for size in rows[-2:]})
    return StepBuckets(
        decode, mixed, greedy=rows, sample=tuple(sample), max_num_seqs=seqs, blocks_per_seq=blocks_per_seq,
        max_tokens=blocks_per_seq * config.cache.block_size, score=_multiple(SCORE_ROWS, tensor_parallel_size),
    )


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of
