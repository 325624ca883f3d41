"""How each row of a step is sampled: packed on the host into one int32 array, unpacked inside the compiled step.

Shapes: R rows in the bucket, V vocabulary. A `RowTemplate` is made once per sequence, when its request is
added; `sampling_rows.RowBuilder` puts a step's rows together from templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from jaxengine.engine.random_bits import DrawKeys
from jaxengine.types import SamplingParams

MAX_BIAS = 1280                # biased or banned tokens per row and step
GREEDY_TEMPERATURE = 1e-5      # below it a row is greedy

(SLOT, SEED_LOW, SEED_HIGH, SAMPLE_INDEX, POSITION, TOP_K, FLAGS,
 TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY) = range(13)
WIDTH = 13
_FIRST_FLOAT = TEMPERATURE     # columns from here on hold the bits of a float32
WANTS_LOGPROBS, MASKED, BIASED, PENALISED = 1, 2, 4, 8


@struct.dataclass
class SampleInputs:
    """A step's sampling rows as they travel: numpy on the host, jax arrays on the device.

    On the host `bias` and `mask` are None where no row uses them; `InputPlacer` puts cached empty arrays in
    their place, so that there is one executable and nothing wide to upload.
    """

    rows: Any     # int32[R, WIDTH]
    bias: Any     # int32[R, 2, MAX_BIAS]: token id (-1: unused) and the bits of a float32 to add
    mask: Any     # uint32[R, ceil(V/32)]: 1 = allowed, bit i of word w for token 32 w + i; read in MASKED rows


@struct.dataclass
class SamplingBatch:
    """The unpacked rows, inside jit. All [R] unless said."""

    slots: jax.Array                # int32
    keys: DrawKeys
    top_k: jax.Array                # int32, 0 = off
    temperature: jax.Array          # float32, 0 = greedy
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    presence_penalty: jax.Array
    frequency_penalty: jax.Array
    wants_logprobs: jax.Array       # bool
    masked: jax.Array               # bool
    edits: jax.Array                # bool: masked, biased or penalised
    bias_ids: jax.Array             # int32[R, MAX_BIAS], -1 = unused
    bias_values: jax.Array          # float32[R, MAX_BIAS]
    mask: jax.Array                 # uint32[R, ceil(V/32)]


def unpack(inputs: SampleInputs) -> SamplingBatch:
    """Device side of `RowTemplate.pack`."""
    assert inputs.rows.shape[1] == WIDTH, inputs.rows.shape
    ints: list[Any] = [inputs.rows[:, i] for i in range(_FIRST_FLOAT)]
    floats: list[Any] = [lax.bitcast_convert_type(inputs.rows[:, i], jnp.float32) for i in range(_FIRST_FLOAT, WIDTH)]
    flags = ints[FLAGS]
    return SamplingBatch(
        ints[SLOT],
        DrawKeys(
            lax.bitcast_convert_type(ints[SEED_LOW], jnp.uint32),
            lax.bitcast_convert_type(ints[SEED_HIGH], jnp.uint32),
            ints[SAMPLE_INDEX],
            ints[POSITION],
        ),
        ints[TOP_K],
        *floats,
        wants_logprobs=(flags & WANTS_LOGPROBS) > 0,
        masked=(flags & MASKED) > 0,
        edits=(flags & (MASKED | BIASED | PENALISED)) > 0,
        bias_ids=inputs.bias[:, 0],
        bias_values=lax.bitcast_convert_type(inputs.bias[:, 1], jnp.float32),
        mask=inputs.mask,
    )


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_TEMPERATURE or params.top_k == 1


def has_penalties(params: SamplingParams) -> bool:
    """Whether the sequence's device state (counts, prompt tokens) must be reset when it is (re)admitted."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def needs_full(params: SamplingParams, num_output_tokens: int = 0) -> bool:
    """Whether a row needs the full sampler; otherwise the greedy one gives the same token."""
    return (
        not is_greedy(params)
        or has_penalties(params)
        or params.logprobs is not None
        or bool(params.logit_bias or params.bad_words or params.allowed_token_ids or params.structured_outputs)
        or num_output_tokens < params.min_tokens
    )


def validate_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raises ValueError naming the field whose token id lies outside the vocabulary."""
    fields = {
        "allowed_token_ids": params.allowed_token_ids,
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
    }
    for name, ids in fields.items():
        for token_id in ids or ():
            if not 0 <= token_id < vocab_size:
                raise ValueError(f"{name}: token id {token_id} is outside the vocabulary of {vocab_size}")


def validate_bans(params: SamplingParams, stop_ids: Iterable[int], bad_words: Sequence[Sequence[int]]) -> None:
    """Raises ValueError where a request biases or bans more tokens than a row holds. bad_words as token ids."""
    stop_ids = set(stop_ids)
    if params.min_tokens and params.allowed_token_ids and stop_ids.issuperset(params.allowed_token_ids):
        raise ValueError(
            f"allowed_token_ids={params.allowed_token_ids} are all stop tokens, which min_tokens={params.min_tokens} "
            "holds back: no token would be left"
        )
    held_back = len(stop_ids) if params.min_tokens else 0
    biased = len(params.logit_bias or {})
    total = biased + held_back + len(bad_words)
    if total > MAX_BIAS:
        raise ValueError(
            f"logit_bias ({biased} tokens), stop tokens held back by min_tokens ({held_back}) and bad_words "
            f"({len(bad_words)} spellings) add up to {total}; a request may have {MAX_BIAS}"
        )


@dataclass(frozen=True, eq=False)
class RowTemplate:
    """The part of a sequence's sampling row that never changes.

    stop_ids are banned until min_tokens are out. bad_words holds token sequences, each word spelt with and
    without a leading space: the last token of one is banned where the output ends with the others.
    """

    row: np.ndarray                                  # int32[WIDTH]; slot and position are filled in per step
    bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed: np.ndarray | None = None                # uint32[ceil(V/32)]

    @property
    def changes(self) -> bool:
        """Whether the row may carry a bias or a mask, so that each step must look at it."""
        return bool(self.bias or self.follows_output or self.allowed is not None)

    @property
    def follows_output(self) -> bool:
        """Whether the row depends on the output so far."""
        return bool(self.min_tokens or self.bad_words)

    @classmethod
    def pack(
        cls,
        params: SamplingParams,
        vocab_size: int,
        sample_index: int = 0,
        stop_ids: Iterable[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
    ) -> RowTemplate:
        """Host side of `unpack`. params.seed is set by now; its low 64 bits count."""
        assert params.seed is not None or is_greedy(params), params
        return cls(
            _pack_row(params, vocab_size, sample_index),
            tuple((params.logit_bias or {}).items()),
            params.min_tokens,
            tuple(stop_ids) if params.min_tokens else (),
            tuple(tuple(word) for word in bad_words),
            None if params.allowed_token_ids is None else pack_ids(params.allowed_token_ids, vocab_size),
        )

    def bias_entries(self, output_ids: Sequence[int]) -> list[tuple[int, float]]:
        """The tokens to bias or ban after these output ids, which must be complete, and by how much."""
        entries = list(self.bias)
        if len(output_ids) < self.min_tokens:
            entries += [(token_id, -np.inf) for token_id in self.stop_ids]
        return entries + [(word[-1], -np.inf) for word in self.bad_words if _ends_with(output_ids, word[:-1])]


def _ends_with(ids: Sequence[int], tail: tuple[int, ...]) -> bool:
    return len(ids) >= len(tail) and tuple(ids[len(ids) - len(tail):]) == tail


def _pack_row(params: SamplingParams, vocab_size: int, sample_index: int) -> np.ndarray:
    row = np.zeros(WIDTH, np.int32)
    seed = params.seed or 0
    words = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint32)
    row[SEED_LOW:SEED_HIGH + 1] = words.view(np.int32)
    row[SAMPLE_INDEX] = sample_index
    row[TOP_K] = params.top_k if 0 < params.top_k < vocab_size else 0
    row[FLAGS] = (
        WANTS_LOGPROBS * (params.logprobs is not None)
        | PENALISED * has_penalties(params)
        | MASKED * (params.allowed_token_ids is not None)
    )
    row[_FIRST_FLOAT:].view(np.float32)[:] = (
        0 if is_greedy(params) else params.temperature, params.top_p, params.min_p,
        params.repetition_penalty, params.presence_penalty, params.frequency_penalty,
    )
    return row


def pack_ids(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """uint32[ceil(V/32)] with the bits of these ids set."""
    flags = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    flags[np.asarray(token_ids, np.int64)] = 1
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
