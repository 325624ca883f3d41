"""The sampler's rules in float64 numpy, by sorting; and short ways to call the sampler on one kind of row."""

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.engine import sampler
from jaxengine.engine.sampling_batch import FLAGS, MAX_BIAS, POSITION, SLOT, RowTemplate, SampleInputs
from jaxengine.engine.sampling_rows import InputPlacer
from jaxengine.types import SamplingParams
from sharding import make_mesh

VOCAB = 1000     # a multiple of neither 32 nor 128
ROWS = 256


def penalised(logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    """Bias, then repetition (prompt and output), frequency and presence penalties (output), as vLLM orders them."""
    x = logits.astype(np.float64).copy()
    for token, value in (params.logit_bias or {}).items():
        x[token] += value
    if params.allowed_token_ids is not None:
        banned = np.ones(len(x), bool)
        banned[params.allowed_token_ids] = False
        x[banned] = -np.inf
    seen = np.unique(np.array([*prompt, *output], np.int64))
    x[seen] = np.where(x[seen] > 0, x[seen] / params.repetition_penalty, x[seen] * params.repetition_penalty)
    counts = np.bincount(np.array(output, np.int64), minlength=len(x))
    return x - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


def probabilities(
    logits: np.ndarray, params: SamplingParams, prompt: list[int] | None = None, output: list[int] | None = None
) -> np.ndarray:
    """The distribution over the vocabulary that a row is drawn from."""
    x = penalised(logits, params, prompt or [], output or []) / params.temperature
    p = np.exp(x - x.max())
    p[p < params.min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k > 0:
        p[order[params.top_k:]] = 0
    p /= p.sum()
    before = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
    p[order[before >= params.top_p]] = 0
    return p / p.sum()


@lru_cache
def _compiled(name: str):
    donated = {"reset_slot": 0, "greedy": 1, "sample": 1}
    return jax.jit(getattr(sampler, name), donate_argnums=donated.get(name, ()))


def call(name: str, *args):
    """The sampler's function of that name, jitted; all arguments placed alike, so that one shape compiles once."""
    return _compiled(name)(*jax.device_put(args, NamedSharding(make_mesh(), PartitionSpec())))


def same_rows(
    params: SamplingParams, positions: np.ndarray, rows: int = ROWS, vocab: int = VOCAB, sample_index: int = 0
) -> SampleInputs:
    """Inputs whose rows all have these params, in slots 0, 1, ..., at the given positions."""
    template = RowTemplate.pack(params, vocab, sample_index)
    packed = np.tile(template.row, (rows, 1))
    packed[:, SLOT] = np.arange(rows)
    packed[:, POSITION] = positions
    bias = None
    entries = template.bias_entries(())
    if entries:
        bias = np.full((rows, 2, MAX_BIAS), -1, np.int32)
        bias[:, 0, :len(entries)] = [token for token, _ in entries]
        bias[:, 1, :len(entries)].view(np.float32)[:] = [value for _, value in entries]
        packed[:, FLAGS] |= 4
    mask = None if template.allowed is None else np.tile(template.allowed, (rows, 1))
    return InputPlacer(make_mesh(), vocab).place(SampleInputs(packed, bias, mask))


def draws(logits: np.ndarray, params: SamplingParams, number: int, sample_index: int = 0, state=None) -> np.ndarray:
    """`number` (a multiple of ROWS) ids drawn from one row of logits float32[VOCAB] at positions 0, 1, ..."""
    x = np.tile(logits, (ROWS, 1))
    ids = []
    for start in range(0, number, ROWS):
        inputs = same_rows(params, np.arange(start, start + ROWS), sample_index=sample_index)
        fresh = sampler.init_state(ROWS, VOCAB) if state is None else state()
        result, _ = call("sample", x, fresh, inputs)
        assert bool(result.finite.all() and result.allowed.all())
        ids.append(np.asarray(result.ids))
    return np.concatenate(ids)
