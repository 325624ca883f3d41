"""The compiled sampler: pure functions on float32 logits, with per-sequence state that stays on the device.

Shapes: R rows in the bucket, S slots, V vocabulary. All functions run under an explicit mesh; the vocabulary
is gathered first (free on one device), so everything after it is replicated.

Token choice follows vLLM's order: log-probabilities from the raw logits; then token mask, bias, penalties;
then temperature, min-p, top-k, top-p, and the draw. No request's value is a shape or a static argument.
"""

from collections.abc import Sequence
from dataclasses import replace

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

_MAX_COUNT = 32767
_CPU_CHUNK = 1 << 21     # logits


@struct.dataclass
class SamplerState:
    """What the sampler remembers of each running sequence. Slot S takes the writes of padding rows.

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
    """Sampled ids. `finite` is False where the row's logits hold a NaN or an infinity, or where nothing is
    allowed; such a row's id lies within the vocabulary but means nothing. The rest is as in ScoreResult, for
    `ids`: from the full sampler, in rows that asked for it."""

    ids: jax.Array                           # int32[R]
    finite: jax.Array                        # bool[R]
    logprob: jax.Array | None = None
    rank: jax.Array | None = None
    top_ids: jax.Array | None = None
    top_logprobs: jax.Array | None = None


def init_state(max_num_seqs: int, vocab_size: int) -> SamplerState:
    """S = max_num_seqs; takes 2.125 bytes per slot and vocabulary entry."""
    slots = max_num_seqs + 1
    return SamplerState(
        jnp.zeros(slots, jnp.int32),
        jnp.zeros((slots, vocab_size), jnp.int16),
        jnp.zeros((slots, -(-vocab_size // 32)), jnp.uint32),
    )


def reset_inputs(
    slot: int, prompt: Sequence[int], output: Sequence[int], num_positions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Host side of `reset_slot`: int32[3] (slot, prompt tokens, all tokens) and int32[num_positions] ids."""
    token_ids = np.full(num_positions, -1, np.int32)
    tokens = [*prompt, *output]
    token_ids[:len(tokens)] = tokens
    return np.array([slot, len(prompt), len(tokens)], np.int32), token_ids


def reset_slot(state: SamplerState, head: jax.Array, token_ids: jax.Array) -> SamplerState:
    """Gives a slot to a sequence that already has these tokens (see `reset_inputs`): its prompt's bits and its
    output's counts. Needed where a sequence with penalties is admitted, also after a preemption."""
    vocab = state.output_counts.shape[1]
    slot, num_prompt, num_tokens = head[0], head[1], head[2]
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
    raw = _gathered(logits)
    _, ids = peaks(raw)
    state = replace(state, last_tokens=state.last_tokens.at[slots].set(ids))
    return SampleResult(ids, _finite(raw)), state


def sample(logits: jax.Array, state: SamplerState, inputs: SampleInputs) -> tuple[SampleResult, SamplerState]:
    """The full sampler on logits float32[R, V]. What no row of the batch uses is skipped at run time."""
    raw, batch = _gathered(logits), unpack(inputs)
    rows, vocab = raw.shape
    chunk = _chunk_rows(rows, vocab)
    if chunk == rows:
        result = _sample_rows(raw, state, batch)
    else:
        chunks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), (raw, batch))
        result = lax.map(lambda part: _sample_rows(part[0], state, part[1]), chunks)
        result = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), result)
    return result, _remember(state, batch.slots, result.ids)


def _chunk_rows(rows: int, vocab: int) -> int:
    """Rows to sample at once. On a CPU a few megabytes of logits stay in the cache, and temporary arrays of
    more than 32 MB would be mapped afresh, page by page, in each call; elsewhere all rows go together."""
    if jax.default_backend() != "cpu":
        return rows
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * vocab <= _CPU_CHUNK))


def _sample_rows(raw: jax.Array, state: SamplerState, batch: SamplingBatch) -> SampleResult:
    edited = lax.cond(batch.edits.any(), lambda: _edit(raw, state, batch), lambda: raw)
    peak, best = peaks(edited)
    finite = _finite(raw) & jnp.isfinite(peak)
    ids = draw(edited, peak, best, batch, finite)
    logprobs = lax.cond(
        batch.wants_logprobs.any(), lambda: _token_logprobs(raw, ids), lambda: _no_logprobs(len(raw))
    )
    return SampleResult(ids, finite, **vars(logprobs))


def score(logits: jax.Array, targets: jax.Array) -> ScoreResult:
    """Log-probabilities of given tokens int32[R] under logits float32[R, V], for prompts and log-likelihoods."""
    return _token_logprobs(_gathered(logits), targets)


def _gathered(logits: jax.Array) -> jax.Array:
    return jax.sharding.reshard(logits, PartitionSpec(None, None))


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
