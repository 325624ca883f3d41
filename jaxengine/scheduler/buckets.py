"""The few sizes that steps are padded to, each one a compiled executable. Pure functions, rising tuples.

The default preset (max_num_seqs 32, max_num_batched_tokens 512) has 5 + 3 + 3 of its budget of 16.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MAX_EXECUTABLES = 16
SHORT_PROMPT = 64   # tokens; a short chat beside a few decodes


def decode_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Sequences in a decode step: powers of two from 2, then max_num_seqs itself, as (2, 4, 8, 16, 24).

    Never 1: XLA makes a matrix-vector product of a one-row batch, which rounds differently.
    """
    return _powers(2, max(2, max_num_seqs), factor=2)


def row_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Rows of the sampler head, every fourth power: the head costs less than a step, so padding is cheap."""
    return _powers(2, max(2, max_num_seqs), factor=4)


def token_buckets(max_num_batched_tokens: int, max_num_seqs: int) -> tuple[int, ...]:
    """Flat tokens in a mixed step: at most three sizes, the largest is max_num_batched_tokens.

    The smallest holds a short chat, or every decode beside a chunk as large; the middle one is the power of
    two above the geometric mean, which makes the worst padding of both halves alike.
    """
    largest = max_num_batched_tokens
    smallest = min(largest, _power_above(max(SHORT_PROMPT, 2 * max_num_seqs)))
    middle = min(largest, _power_above((smallest * largest) ** 0.5))
    return tuple(sorted({smallest, middle, largest}))


def pick(buckets: Sequence[int], size: int) -> int:
    """The smallest bucket that holds `size`. Raises ValueError where none does."""
    at = bisect_left(buckets, size)
    if at == len(buckets):
        raise ValueError(f"size={size} exceeds the largest bucket of {tuple(buckets)}; add a larger one")
    return buckets[at]


def _powers(first: int, last: int, factor: int) -> tuple[int, ...]:
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return (*sizes, last)


def _power_above(size: float) -> int:
    power = 1
    while power < size:
        power *= 2
    return power
