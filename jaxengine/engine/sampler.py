"""The compiled sampler: pure functions on float32 logits, with per-sequence state that stays on the device.

Shapes: R rows in the bucket, S slots, V vocabulary, of one data-parallel shard each.

All functions run under an explicit mesh, by hand. Each shard has its own rows and slots, and nothing passes
between shards. Within one, logits come split over the vocabulary and are never gathered: the greedy search
compares the devices' best tokens, a few bytes a row; for the rest the devices exchange parts so that each has
R / devices whole rows, which it samples as a single device would, so the tokens are the same bit by bit.

Token choice follows vLLM's order: log-probabilities from the raw logits; then token mask, bias, penalties;
then temperature, min-p, top-k, top-p, and the draw. No request's value is a shape or a static argument.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import PartitionSpec

from jaxengine.engine.draw import draw
from jaxengine.engine.sampling_batch import SampleInputs, SamplingBatch, unpack
from jaxengine.engine.vocab_blocks import pack_bits, peaks, top_k, unpack_bits
from jaxengine.types import MAX_LOGPROBS
from sharding import DATA, MODEL, axis_size, spec

_MAX_COUNT = 32767
_CPU_CHUNK = 1 << 21     # logits


@struct.dataclass
class SamplerState:
    """What the sampler remembers of each running sequence. Slot S takes the writes of padding rows. With
    several shards each has S + 1 slots, one shard's after another's.

    Counts and prompt tokens are read only for rows with penalties, and hold only after `reset_slot`.
    """

    last_tokens: jax.Array      # int32[S + 1]
    output_counts: jax.Array    # int16[S + 1, V]
    prompt_bits: jax.Array      # uint32[S + 1, ceil(V/32)]


@struct.dataclass
class ScoreResult:
    """Raw log-probabilities (natural log) of one token per row and of the best ones.

    Ranks count from 1; tokens of equal logit share the better rank. Of V < MAX_LOGPROBS tokens the tail of
    the top lists is -inf.
    """

    logprob: jax.Array          # float32[R]
    rank: jax.Array             # int32[R]
    top_ids: jax.Array          # int32[R, MAX_LOGPROBS]
    top_logprobs: jax.Array     # float32[R, MAX_LOGPROBS], descending


@struct.dataclass
class SampleResult:
    """Sampled ids. `finite` is False where the row's logits hold a NaN or an infinity, `allowed` where masks and
    biases leave no token; such a row's id lies within the vocabulary but means nothing. All but the first two come
    from the full sampler alone, and log-probabilities, as in ScoreResult and for `ids`, in rows that asked for
    them."""

    ids: jax.Array                           # int32[R]
    finite: jax.Array                        # bool[R]
    allowed: jax.Array | None = None         # bool[R]
    logprob: jax.Array | None = None
    rank: jax.Array | None = None
    top_ids: jax.Array | None = None
    top_logprobs: jax.Array | None = None


def init_state(max_num_seqs: int, vocab_size: int, num_shards: int = 1) -> SamplerState:
    """S = max_num_seqs; takes 2.125 bytes per slot and vocabulary entry."""
    slots = num_shards * (max_num_seqs + 1)
    return SamplerState(
        jnp.zeros(slots, jnp.int32),
        jnp.zeros((slots, vocab_size), jnp.int16),
        jnp.zeros((slots, -(-vocab_size // 32)), jnp.uint32),
    )


def reset_inputs(
    slot: int, prompt: Sequence[int], output: Sequence[int], num_positions: int, shard: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Host side of `reset_slot`: int32[4] (slot, prompt tokens, all tokens, shard) and int32[num_positions] ids."""
    token_ids = np.full(num_positions, -1, np.int32)
    tokens = [*prompt, *output]
    token_ids[:len(tokens)] = tokens
    return np.array([slot, len(prompt), len(tokens), shard], np.int32), token_ids


def reset_slot(state: SamplerState, head: jax.Array, token_ids: jax.Array) -> SamplerState:
    """Gives a slot to a sequence that already has these tokens (see `reset_inputs`): its prompt's bits and its
    output's counts. Needed where a sequence with penalties is admitted, also after a preemption."""
    return _by_hand(_reset_slot, (spec("slots"), spec(), spec()), spec("slots"))(state, head, token_ids)


def _reset_slot(state: SamplerState, head: jax.Array, token_ids: jax.Array) -> SamplerState:
    num_slots, vocab = state.output_counts.shape
    slot, num_prompt, num_tokens, shard = head[0], head[1], head[2], head[3]
    if axis_size(DATA) > 1:      # elsewhere the write goes to the spare slot
        slot = jnp.where(lax.axis_index(DATA) == shard, slot, num_slots - 1)
    at = lax.iota(jnp.int32, token_ids.shape[0])
    prompt = jnp.where(at < num_prompt, token_ids, vocab)
    output = jnp.where((at >= num_prompt) & (at < num_tokens), token_ids, vocab)
    seen = jnp.zeros(vocab, bool).at[prompt].set(True, mode="drop")
    counts = jnp.zeros(vocab, jnp.int32).at[output].add(1, mode="drop")
    return SamplerState(
        state.last_tokens.at[slot].set(token_ids[jnp.maximum(num_tokens - 1, 0)]),
        state.output_counts.at[slot].set(jnp.minimum(counts, _MAX_COUNT).astype(jnp.int16)),
        state.prompt_bits.at[slot].set(pack_bits(seen)),
    )


def greedy(logits: jax.Array, state: SamplerState, slots: jax.Array) -> tuple[SampleResult, SamplerState]:
    """The best token of each row of logits float32[R, V] (the lowest id on a tie); counts stay untouched."""
    def local(logits: jax.Array, state: SamplerState, slots: jax.Array) -> tuple[SampleResult, SamplerState]:
        ids, finite = _best(logits)
        return SampleResult(ids, finite), replace(state, last_tokens=state.last_tokens.at[slots].set(ids))

    rows, per_slot = spec("tokens"), spec("slots")
    return _by_hand(local, (spec("tokens", "vocab"), per_slot, rows), (rows, per_slot))(logits, state, slots)


def sample(logits: jax.Array, state: SamplerState, inputs: SampleInputs) -> tuple[SampleResult, SamplerState]:
    """The full sampler on logits float32[R, V]. What no row of the batch uses is skipped at run time.

    R is a multiple of the devices that share the vocabulary.
    """
    def local(logits: jax.Array, state: SamplerState, inputs: SampleInputs) -> tuple[SampleResult, SamplerState]:
        raw, batch = _whole_rows(logits), unpack(inputs)
        rows, vocab = raw.shape
        chunk = _chunk_rows(rows, vocab)
        if chunk == rows:
            result = _sample_rows(raw, state, batch)
        else:
            chunks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), (raw, batch))
            result = lax.map(lambda part: _sample_rows(part[0], state, part[1]), chunks)
            result = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), result)
        return result, _remember(state, *_of_all_rows(batch.slots, result.ids))

    rows, per_slot = spec("sampled"), spec("slots")
    return _by_hand(local, (spec("tokens", "vocab"), per_slot, rows), (rows, per_slot))(logits, state, inputs)


def score(logits: jax.Array, targets: jax.Array) -> ScoreResult:
    """Log-probabilities of given tokens int32[R] under logits float32[R, V], for prompts and log-likelihoods.

    R is a multiple of the devices that share the vocabulary.
    """
    def local(logits: jax.Array, targets: jax.Array) -> ScoreResult:
        return _token_logprobs(_whole_rows(logits), targets)

    rows = spec("sampled")
    return _by_hand(local, (spec("tokens", "vocab"), rows), rows)(logits, targets)


def _by_hand(f: Callable, in_specs: tuple[PartitionSpec, ...], out_specs: Any) -> Callable:
    """f on each device's part. Arguments are brought to their specs first: as the engine has them, they are."""
    def call(*args: Any) -> Any:
        placed = [
            jax.tree.map(lambda x, spec=spec: jax.reshard(x, spec), arg)
            for arg, spec in zip(args, in_specs, strict=True)
        ]
        return jax.shard_map(f, in_specs=in_specs, out_specs=out_specs, check_vma=False)(*placed)
    return call


def _best(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """From each device's logits [R, V / devices]: the best id of all and whether all are finite, [R] both."""
    peak, ids = peaks(logits)
    finite = _finite(logits)
    if axis_size(*MODEL) == 1:
        return ids, finite
    ids = ids + lax.axis_index(MODEL) * logits.shape[1]
    mine = jnp.stack([lax.bitcast_convert_type(peak, jnp.int32), ids, finite.astype(jnp.int32)])
    everyone = lax.all_gather(mine, MODEL)      # [devices, 3, R]
    best = jnp.argmax(lax.bitcast_convert_type(everyone[:, 0], jnp.float32), 0)      # the first: the lowest ids
    return jnp.take_along_axis(everyone[:, 1], best[None], axis=0)[0], everyone[:, 2].all(0)


def _whole_rows(logits: jax.Array) -> jax.Array:
    """From each device's part of the vocabulary of all rows to the whole vocabulary of its share of the rows."""
    if axis_size(*MODEL) == 1:
        return logits
    return lax.all_to_all(logits, MODEL, split_axis=0, concat_axis=1, tiled=True)


def _of_all_rows(*values: jax.Array) -> tuple[jax.Array, ...]:
    """From each device's share of the rows, int32[R / devices], to those of all rows."""
    if axis_size(*MODEL) == 1:
        return values
    return tuple(lax.all_gather(jnp.stack(values), MODEL, axis=1, tiled=True))


def _chunk_rows(rows: int, vocab: int) -> int:
    """Rows to sample at once. On a CPU a few megabytes of logits stay in the cache, and temporary arrays of
    more than 32 MB would be mapped afresh, page by page, in each call; elsewhere all rows go together."""
    if jax.default_backend() != "cpu":
        return rows
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * vocab <= _CPU_CHUNK))


def _sample_rows(raw: jax.Array, state: SamplerState, batch: SamplingBatch) -> SampleResult:
    edited = lax.cond(batch.edits.any(), lambda: _edit(raw, state, batch), lambda: raw)
    peak, best = peaks(edited)
    finite, allowed = _finite(raw), jnp.isfinite(peak)
    ids = draw(edited, peak, best, batch, finite & allowed)
    logprobs = lax.cond(
        batch.wants_logprobs.any(), lambda: _token_logprobs(raw, ids), lambda: _no_logprobs(len(raw))
    )
    return SampleResult(ids, finite, allowed, **vars(logprobs))


def _finite(logits: jax.Array) -> jax.Array:
    """bool[R]. By the sum: a maximum does not show a NaN on every back end."""
    return jnp.isfinite(logits.sum(-1))


def _edit(logits: jax.Array, state: SamplerState, batch: SamplingBatch) -> jax.Array:
    """Token mask, bias, then repetition penalty (prompt and output) and presence and frequency (output)."""
    rows, vocab = logits.shape
    x = jnp.where(unpack_bits(batch.mask, vocab) | ~batch.masked[:, None], logits, -jnp.inf)
    biased = jnp.where(batch.bias_ids < 0, vocab, batch.bias_ids)     # out of range: dropped
    x = x.at[lax.iota(jnp.int32, rows)[:, None], biased].add(batch.bias_values, mode="drop")
    counts = state.output_counts[batch.slots].astype(jnp.float32)
    seen = unpack_bits(state.prompt_bits[batch.slots], vocab) | (counts > 0)
    repetition = batch.repetition_penalty[:, None]
    x = jnp.where(seen, jnp.where(x > 0, x / repetition, x * repetition), x)
    x = x - batch.frequency_penalty[:, None] * counts
    return x - jnp.where(counts > 0, batch.presence_penalty[:, None], 0.0)


def _remember(state: SamplerState, slots: jax.Array, ids: jax.Array) -> SamplerState:
    counts = jnp.minimum(state.output_counts[slots, ids], _MAX_COUNT - 1) + jnp.int16(1)
    return replace(
        state,
        last_tokens=state.last_tokens.at[slots].set(ids),
        output_counts=state.output_counts.at[slots, ids].set(counts),
    )


def _token_logprobs(raw: jax.Array, ids: jax.Array) -> ScoreResult:
    peak = raw.max(-1, keepdims=True)
    norm = jnp.log(jnp.exp(raw - peak).sum(-1, keepdims=True)) + peak
    chosen = jnp.take_along_axis(raw, ids[:, None], axis=1)
    ranks = 1 + jnp.sum(raw > chosen, -1, dtype=jnp.int32)
    values, top_ids = top_k(raw, MAX_LOGPROBS)
    return ScoreResult((chosen - norm)[:, 0], ranks, top_ids, values - norm)


def _no_logprobs(rows: int) -> ScoreResult:
    shape = (rows, MAX_LOGPROBS)
    return ScoreResult(
        jnp.zeros(rows), jnp.zeros(rows, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    )
