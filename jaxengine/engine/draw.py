"""Drawing one token per row from edited logits: temperature, min-p, then top-k, then top-p, then the draw.

Shapes: R rows, V vocabulary.

With w = exp((x - max x) / temperature), the kept tokens are those with
  w >= min_p,  fewer than top_k tokens of larger w,  and mass(larger w) < top_p * mass(kept by the first two).
Tokens of equal w (or equal after float32 rounding) are kept or dropped together, except that top_k up to
SMALL_TOP_K keeps exactly top_k tokens, the lower ids first. The vocabulary is never sorted:

- top_k <= SMALL_TOP_K: the candidates come from a blocked top-k, and everything else happens on those few.
- otherwise: rejection from above. Draw a token ∝ w; one pass gives the mass of all larger tokens, which says
  exactly whether the token is kept. If not, no token of its weight or below is, so the next draw is among the
  larger ones, whose block sums that same pass has left. Kept tokens stay in their proportions throughout, so
  the accepted token has the exact distribution. With top_p 0.9 a row takes 1.1 draws on average; each
  rejection halves the remaining mass on average, so even a tiny top_p takes about log2(1/top_p) draws.

A draw ∝ w is an exponential race: the least E_i / w_i wins, with E_i ~ Exp(1) from (seed, sample index,
position, round, lane) alone. It is run twice, among the sums of blocks of BLOCK tokens and then inside the
winning block, so it costs V/BLOCK + BLOCK random numbers instead of V. Unlike an inverse CDF it never
subtracts large partial sums: the chance of a token is off by the relative rounding of its weight and of its
variate (about 1e-6 down to tokens of probability 1e-6), never by an absolute 2^-24 that would starve rare
tokens. Over a sharded vocabulary whole blocks live on a shard and lanes count globally, so each shard races
its own blocks and one argmin over shards decides.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxengine.engine.random_bits import MAX_LANES, MAX_RANDOM_ROUNDS, exponentials
from jaxengine.engine.sampling_batch import SamplingBatch
from jaxengine.engine.vocab_blocks import BLOCK, split_blocks, take_block, top_k

SMALL_TOP_K = 64
_MAX_DRAWS = MAX_RANDOM_ROUNDS - 56      # never reached in practice; the last rounds stay free for other uses
_INNER_LANES = MAX_LANES - BLOCK         # the inner race's lanes lie above those of all blocks


def draw(x: jax.Array, peak: jax.Array, best: jax.Array, batch: SamplingBatch, valid: jax.Array) -> jax.Array:
    """Token ids int32[R] from edited logits x float32[R, V] with row maximum `peak` at id `best`.

    Rows with temperature 0 and rows that are not `valid` give `best`.
    """
    random = (batch.temperature > 0) & valid
    small = random & (batch.top_k > 0) & (batch.top_k <= SMALL_TOP_K)
    general = random & ~small
    scale = 1 / jnp.where(random, batch.temperature, 1.0)
    ids = lax.cond(
        small.any(), lambda: jnp.where(small, _draw_small(x, peak, scale, batch), best), lambda: best
    )
    return lax.cond(
        general.any(), lambda: jnp.where(general, _draw_general(x, peak, best, scale, batch, general), ids),
        lambda: ids,
    )


def _draw_small(x: jax.Array, peak: jax.Array, scale: jax.Array, batch: SamplingBatch) -> jax.Array:
    """For rows with 0 < top_k <= SMALL_TOP_K."""
    values, ids = top_k(x, SMALL_TOP_K)
    weights = jnp.exp((values - peak[:, None]) * scale[:, None])
    rank = lax.iota(jnp.int32, SMALL_TOP_K)[None]
    weights = jnp.where((rank < batch.top_k[:, None]) & (weights >= batch.min_p[:, None]), weights, 0.0)
    running = jnp.cumsum(weights, -1)
    before = running - weights
    kept = (before < batch.top_p[:, None] * running[:, -1:]) | (rank == 0)
    noise = exponentials(batch.keys, 0, lax.iota(jnp.uint32, SMALL_TOP_K))
    winner = jnp.argmin(noise / jnp.where(kept, weights, 0.0), -1)
    return jnp.take_along_axis(ids, winner[:, None], axis=1)[:, 0]


def _draw_general(
    x: jax.Array, peak: jax.Array, best: jax.Array, scale: jax.Array, batch: SamplingBatch, rows: jax.Array
) -> jax.Array:
    """Rejection from above for the rows in `rows` bool[R]; the other rows' results mean nothing."""
    weights = jnp.exp((x - peak[:, None]) * scale[:, None])
    blocks = split_blocks(weights, 0.0)
    floor = jnp.maximum(batch.min_p, _kth_weight(weights, jnp.where(rows, batch.top_k, 0)))
    cut = (rows & (floor > 0)).any()

    def unfinished(carry):
        turn, _, _, _, done = carry
        return (turn < _MAX_DRAWS) & ~done.all()

    def step(carry):
        turn, ids, above, total, done = carry
        sums = lax.cond(
            (turn > 0) | cut,
            lambda: jnp.where(blocks > above[:, None, None], blocks, 0.0).sum(-1),
            lambda: blocks.sum(-1),
        )
        mass = sums.sum(-1)
        total = jnp.where(turn == 0, mass, total)
        done = done | ((turn > 0) & ((mass < batch.top_p * total) | (mass <= 0)))
        new_ids, new_weight = _race(blocks, sums, above, batch, turn)
        ids, above = jnp.where(done, ids, new_ids), jnp.where(done, above, new_weight)
        return turn + 1, ids, above, total, done | (batch.top_p >= 1)

    start = (jnp.int32(0), best, _next_below(floor), jnp.zeros_like(peak), ~rows)
    _, ids, _, _, done = lax.while_loop(unfinished, step, start)
    return jnp.where(done, jnp.minimum(ids, x.shape[1] - 1), best)


def _race(
    blocks: jax.Array, sums: jax.Array, above: jax.Array, batch: SamplingBatch, turn: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Ids int32[R] drawn ∝ weight among weights > above [R], and their weights. sums: of such, by block."""
    num_blocks = sums.shape[1]
    assert num_blocks <= _INNER_LANES, num_blocks
    lanes = jnp.concatenate([lax.iota(jnp.uint32, num_blocks), _INNER_LANES + lax.iota(jnp.uint32, BLOCK)])
    noise = exponentials(batch.keys, turn, lanes)
    block = jnp.argmin(noise[:, :num_blocks] / sums, -1).astype(jnp.int32)
    inside = take_block(blocks, block)
    lane = jnp.argmin(noise[:, num_blocks:] / jnp.where(inside > above[:, None], inside, 0.0), -1).astype(jnp.int32)
    return block * BLOCK + lane, jnp.take_along_axis(inside, lane[:, None], axis=1)[:, 0]


def _kth_weight(weights: jax.Array, k: jax.Array) -> jax.Array:
    """The k-th largest of weights float32[R, V], each in [0, 1]; 0 where k int32[R] is 0.

    Bisection on the bit pattern, which orders non-negative floats; a row stops as soon as exactly k weights
    reach its threshold, which is then as good as the k-th weight itself.
    """
    above_one = int(np.float32(1).view(np.int32)) + 1

    def open_rows(carry):
        low, high = carry
        return (high - low > 1).any()

    def halve(carry):    # k or more weights are >= low, fewer than k are >= high
        low, high = carry
        middle = low + (high - low) // 2
        bound = lax.bitcast_convert_type(middle, jnp.float32)[:, None]
        count = jnp.sum(weights >= bound, -1, dtype=jnp.int32)
        low = jnp.where(count >= k, middle, low)
        return low, jnp.where(count == k, low + 1, jnp.where(count >= k, high, middle))

    low, _ = lax.while_loop(open_rows, halve, (jnp.zeros_like(k), jnp.where(k > 0, above_one, 1)))
    return lax.bitcast_convert_type(low, jnp.float32)


def _next_below(x: jax.Array) -> jax.Array:
    """The float just below x >= 0, so that `> next_below(x)` means `>= x`; -1 for 0."""
    return jnp.where(x > 0, lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) - 1, jnp.float32), -1.0)
