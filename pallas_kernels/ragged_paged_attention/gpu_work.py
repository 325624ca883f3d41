"""What the Hopper kernels have to do, listed by XLA inside the same step: one row for each piece of work that exists.

The tables have room for the most work that a batch of their shape can need; the kernels stop at `total`.
Legend: B sequences · W rows of a table · T flat tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_paged_attention.gpu_common import ceil_div


class WorkTable(NamedTuple):
    """The splits that there are: `items[:total]` are live; sequence b owns count[b] of them from first[b] on."""

    items: jax.Array     # int32[W, 3] sequence, first token, one past the last token
    total: jax.Array     # int32[1]
    first: jax.Array     # int32[B]
    count: jax.Array     # int32[B]


def work_table(starts: jax.Array, stops: jax.Array, split: int, max_splits: int) -> WorkTable:
    """Lists the splits of each sequence's tokens [starts, stops), int32[B] both; empty where stops <= starts."""
    B = starts.shape[0]
    first_split = lax.div(starts, split)
    count = jnp.where(stops > starts, ceil_div(stops, split) - first_split, 0)
    ends = jnp.cumsum(count)
    rows = jnp.arange(B * max_splits)
    seq = jnp.minimum(jnp.searchsorted(ends, rows, side="right", method="compare_all"), B - 1)
    first = ends - count
    at = (first_split[seq] + rows - first[seq]) * split
    items = jnp.stack([seq, jnp.maximum(at, starts[seq]), jnp.minimum(at + split, stops[seq])], axis=1)
    return WorkTable(items.astype(jnp.int32), ends[-1:], first, count)


class TileTable(NamedTuple):
    """The tiles of queries that there are: `items[:total]` are live, longest first."""

    # int32[W, 8]: sequence; first flat token loaded; flat tokens [start, stop) to write; position of the first
    # loaded token; KV tiles [first, last) to visit; the sequence's KV length
    items: jax.Array
    total: jax.Array     # int32[1]


def tile_table(
    cu_q_lens: jax.Array, kv_lens: jax.Array, skip: jax.Array, num_tokens: int, tokens: int, kv_tile: int,
    sliding_window: int | None,
) -> TileTable:
    """Cuts the queries of each sequence from `skip` on (int32[B + 1], int32[B], int32[]) into tiles of `tokens`."""
    B = kv_lens.shape[0]
    q_lens = jnp.where(jnp.arange(B) >= skip, cu_q_lens[1:] - cu_q_lens[:-1], 0)
    count = ceil_div(q_lens, tokens)
    ends = jnp.cumsum(count)
    rows = jnp.arange(-(-num_tokens // tokens) + B)
    seq = jnp.minimum(jnp.searchsorted(ends, rows, side="right", method="compare_all"), B - 1)
    start = cu_q_lens[seq] + (rows - ends[seq] + count[seq]) * tokens
    stop = jnp.minimum(start + tokens, cu_q_lens[seq + 1])
    # The last tile of the batch is loaded from a little before, so that a copy never runs past the last token.
    load = jnp.clip(start, 0, num_tokens - tokens)
    to_position = kv_lens[seq] - cu_q_lens[seq + 1]
    first = 0 * start
    if sliding_window is not None:
        first = lax.div(jnp.maximum(start + to_position - sliding_window + 1, 0), kv_tile)
    last = ceil_div(jnp.maximum(stop + to_position, 0), kv_tile)
    items = jnp.stack([seq, load, start, stop, load + to_position, first, last, kv_lens[seq]], axis=1)
    longest_first = jnp.argsort(jnp.where(rows < ends[-1], first - last, 1))
    return TileTable(items.astype(jnp.int32)[longest_first], ends[-1:])
