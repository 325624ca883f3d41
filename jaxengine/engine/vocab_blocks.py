"""Reductions over the vocabulary by blocks: a maximum or sum per block in one fast pass, then a small problem.

Shapes: R rows, V vocabulary. A full sort, or an argmax straight over V, is ten to a hundred times slower on
a CPU than the per-block maximum that these start from.
"""

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 128          # the unit of the greedy search and of the two-level draw
TOP_K_BLOCK = 32     # smaller, so that the candidates of a top-k stay few


def split_blocks(x: jax.Array, fill: float, block: int = BLOCK, at_least: int = 1) -> jax.Array:
    """x [R, V] -> [R, blocks, block], the last block padded with `fill`; free where block divides V."""
    rows, vocab = x.shape
    blocks = max(-(-vocab // block), at_least)
    if blocks * block != vocab:
        x = jnp.pad(x, ((0, 0), (0, blocks * block - vocab)), constant_values=fill)
    return x.reshape(rows, blocks, block)


def peaks(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The maximum float32[R] of each row of x [R, V] and the first id int32[R] that reaches it.

    A row with a NaN gives some maximum and some id within the vocabulary.
    """
    blocks = split_blocks(x, -jnp.inf)
    block_max = blocks.max(-1)
    block = jnp.argmax(block_max, -1).astype(jnp.int32)
    lanes = take_block(blocks, block)
    ids = block * BLOCK + jnp.argmax(lanes, -1).astype(jnp.int32)
    return lanes.max(-1), jnp.minimum(ids, x.shape[1] - 1)


def take_block(blocks: jax.Array, index: jax.Array) -> jax.Array:
    """blocks [R, blocks, block] at index int32[R] -> [R, block]."""
    return jnp.take_along_axis(blocks, index[:, None, None], axis=1)[:, 0]


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of each row of x [R, V]: values [R, k] descending and ids int32[R, k].

    Among equal values the lower id comes first, as with lax.top_k. The k largest elements lie within the k
    blocks of largest maximum, so only those are looked at. With V < k the tail holds -inf and clipped ids.
    """
    blocks = split_blocks(x, -jnp.inf, TOP_K_BLOCK, at_least=-(-k // TOP_K_BLOCK))
    rows, num_blocks, _ = blocks.shape
    chosen = lax.top_k(blocks.max(-1), min(k, num_blocks))[1]
    chosen = jnp.sort(chosen, -1)    # ascending, so that position breaks ties as the id would
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, -1)
    values, where = lax.top_k(candidates, k)
    ids = jnp.take_along_axis(chosen, where // TOP_K_BLOCK, axis=1) * TOP_K_BLOCK + where % TOP_K_BLOCK
    return values, jnp.minimum(ids, x.shape[1] - 1)


def unpack_bits(words: jax.Array, size: int) -> jax.Array:
    """uint32[R, ceil(size/32)] -> bool[R, size]; bit i of word w is element 32 w + i."""
    bits = (words[:, :, None] >> lax.iota(jnp.uint32, 32)[None, None]) & jnp.uint32(1)
    return bits.reshape(words.shape[0], -1)[:, :size] > 0


def pack_bits(flags: jax.Array) -> jax.Array:
    """bool[size] -> uint32[ceil(size/32)], the inverse of unpack_bits for one row."""
    padded = jnp.pad(flags, (0, -flags.shape[0] % 32)).reshape(-1, 32)
    return jnp.sum(padded.astype(jnp.uint32) << lax.iota(jnp.uint32, 32)[None], axis=1, dtype=jnp.uint32)
