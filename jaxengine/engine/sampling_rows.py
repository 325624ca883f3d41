"""Puts a step's sampling rows together from the templates of its sequences, and places them on the device."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxengine import types
from jaxengine.engine.sampling_batch import (
    BIASED,
    FLAGS,
    MASKED,
    MAX_BIAS,
    POSITION,
    SLOT,
    WIDTH,
    RowTemplate,
    SampleInputs,
)
from sharding import spec


class Sampled(Protocol):
    """A sequence whose next token, at `position`, is sampled with the state of `slot`."""

    @property
    def seq(self) -> types.Sequence: ...
    @property
    def slot(self) -> int: ...
    @property
    def position(self) -> int: ...


class RowBuilder:
    """Keeps the packed row of each slot's sequence, so that a step's rows are one numpy gather.

    Shard s has the slots [s * max_num_seqs, (s + 1) * max_num_seqs); on its devices they count from 0, and
    slot `max_num_seqs` is the padding rows'. Sequences that were not admitted are greedy.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, num_shards: int = 1) -> None:
        self._vocab_size = vocab_size
        self._greedy = RowTemplate.pack(types.SamplingParams(temperature=0.0), vocab_size)
        self._templates: dict[int, RowTemplate] = {}     # by seq_id
        self._slots_per_shard, self._num_shards = max_num_seqs, num_shards
        self._rows = np.tile(self._greedy.row, (num_shards * max_num_seqs + 1, 1))      # the last: a padding row
        self._rows[-1, SLOT] = max_num_seqs
        self._owner = [-1] * (num_shards * max_num_seqs)       # seq_id whose row the slot holds
        self._changing: dict[int, RowTemplate] = {}      # slots whose bias or mask each step must look at

    def admit(
        self, seq: types.Sequence, eos_token_ids: Iterable[int] = (), bad_words: Sequence[Sequence[int]] = ()
    ) -> None:
        """Remembers how a new sequence is sampled, until `release`."""
        params = seq.request.params
        stop_ids = {*eos_token_ids, *(params.stop_token_ids or ())}
        self._templates[seq.seq_id] = RowTemplate.pack(params, self._vocab_size, seq.index, stop_ids, bad_words)

    def release(self, seq: types.Sequence) -> None:
        """Forgets a sequence, admitted or not."""
        self._templates.pop(seq.seq_id, None)

    def build(
        self, samples: Sequence[Sampled], bucket: int, masks: Mapping[int, np.ndarray] | None = None,
        places: np.ndarray | None = None,
    ) -> SampleInputs:
        """Rows for `samples`, each shard's padded to `bucket`. The sequences' output ids are complete: each
        sampled id has been read. places: the row of each sample, where there are several shards.

        masks: allowed tokens uint32[ceil(V/32)] by index into `samples`, a grammar's for instance, on top of the
        request's own allowed_token_ids. The arrays are fresh: the device may still read those of the step before.
        """
        slots = [s.slot for s in samples]
        for slot, sample in zip(slots, samples, strict=True):
            if self._owner[slot] != sample.seq.seq_id:
                self._take_slot(slot, sample.seq.seq_id)
        at = slice(len(slots)) if places is None else places
        index = np.full(self._num_shards * bucket, len(self._owner))
        index[at] = slots
        rows = self._rows[index]
        rows[at, POSITION] = [s.position for s in samples]
        changing: dict[int, RowTemplate] = {}
        if not self._changing.keys().isdisjoint(slots):
            changing = {i: self._changing[slot] for i, slot in enumerate(slots) if slot in self._changing}
        at = range(len(slots)) if places is None else places.tolist()
        return SampleInputs(rows, _biases(rows, at, samples, changing), self._masks(rows, at, changing, masks or {}))

    def _take_slot(self, slot: int, seq_id: int) -> None:
        template = self._templates.get(seq_id, self._greedy)
        self._owner[slot] = seq_id
        self._rows[slot] = template.row
        self._rows[slot, SLOT] = slot % self._slots_per_shard
        self._changing.pop(slot, None)
        if template.changes:
            self._changing[slot] = template

    def _masks(
        self, rows: np.ndarray, at: Sequence[int], changing: dict[int, RowTemplate], masks: Mapping[int, np.ndarray]
    ) -> np.ndarray | None:
        own = {i: template.allowed for i, template in changing.items() if template.allowed is not None}
        if not own and not masks:
            return None
        mask = _empty_mask(len(rows), self._vocab_size)
        for i in own.keys() | masks.keys():
            both = [part[i] for part in (own, masks) if i in part]
            mask[at[i]] = both[0] if len(both) == 1 else both[0] & both[1]
            rows[at[i], FLAGS] |= MASKED
        return mask


def _biases(
    rows: np.ndarray, at: Sequence[int], samples: Sequence[Sampled], changing: dict[int, RowTemplate]
) -> np.ndarray | None:
    """at: the row of each sample."""
    bias = None
    for i, template in changing.items():
        entries = template.bias_entries(samples[i].seq.output_token_ids if template.follows_output else ())
        if entries:
            bias = _empty_bias(len(rows)) if bias is None else bias
            ids, values = zip(*entries, strict=True)
            bias[at[i], 0, :len(ids)] = ids
            bias[at[i], 1, :len(ids)].view(np.float32)[:] = values
            rows[at[i], FLAGS] |= BIASED
    return bias


class InputPlacer:
    """Uploads sampling rows, each to the device that samples it; absent biases and masks become cached empty
    arrays."""

    def __init__(self, mesh: Mesh, vocab_size: int) -> None:
        self._sharding = NamedSharding(mesh, spec("sampled"))
        self._vocab_size = vocab_size
        self._empty: dict[int, tuple[jax.Array, jax.Array]] = {}

    def place(self, inputs: SampleInputs) -> SampleInputs:
        bucket = len(inputs.rows)
        if bucket not in self._empty:
            arrays = _empty_bias(bucket), _empty_mask(bucket, self._vocab_size)
            self._empty[bucket] = jax.device_put(arrays, self._sharding)
        bias, mask = self._empty[bucket]
        fresh: SampleInputs = jax.device_put(inputs, self._sharding)
        return SampleInputs(
            fresh.rows, bias if fresh.bias is None else fresh.bias, mask if fresh.mask is None else fresh.mask
        )


def abstract_inputs(bucket: int, vocab_size: int) -> SampleInputs:
    """SampleInputs of ShapeDtypeStructs, to compile for."""
    return SampleInputs(
        jax.ShapeDtypeStruct((bucket, WIDTH), np.int32),
        jax.ShapeDtypeStruct((bucket, 2, MAX_BIAS), np.int32),
        jax.ShapeDtypeStruct((bucket, -(-vocab_size // 32)), np.uint32),
    )


def _empty_bias(bucket: int) -> np.ndarray:
    return np.full((bucket, 2, MAX_BIAS), -1, np.int32)


def _empty_mask(bucket: int, vocab_size: int) -> np.ndarray:
    return np.zeros((bucket, -(-vocab_size // 32)), np.uint32)
