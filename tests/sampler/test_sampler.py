"""The sampler's functions: independence of rows, edits, log-probabilities, flags and state."""

import jax
import numpy as np
import pytest
import scipy.special
from sampler_reference import ROWS, VOCAB, call, penalised, same_rows

from jaxengine.engine import sampler
from jaxengine.engine.sampling_batch import SLOT, SampleInputs
from jaxengine.types import MAX_LOGPROBS, SamplingParams

ALL = {"temperature": 0.9, "top_p": 0.9, "top_k": 100}


def random_logits(rng: np.random.Generator, rows: int = ROWS, scale: float = 2.0) -> np.ndarray:
    return (scale * rng.standard_normal((rows, VOCAB))).astype(np.float32)


def rows_of(*inputs: SampleInputs) -> SampleInputs:
    """One batch with row i from the i-th inputs; slots 0, 1, ..."""
    parts = [np.stack([np.asarray(getattr(x, name))[i] for i, x in enumerate(inputs)])
             for name in ("rows", "bias", "mask")]
    parts[0][:, SLOT] = np.arange(len(inputs))
    return SampleInputs(*parts)


@pytest.mark.parametrize("options", [{}, {"top_k": 20}, {"top_p": 0.4}, ALL], ids=str)
def test_a_row_does_not_see_its_neighbours(options: dict, rng: np.random.Generator) -> None:
    """The same logits, seed and position give the same id in row 0 of 256 and in row 5 of 8 unlike rows."""
    logits = random_logits(rng)
    params = SamplingParams(seed=2**40 + 1, **options)
    alone, _ = call("sample", logits, sampler.init_state(ROWS, VOCAB), same_rows(params, np.arange(ROWS)))
    others = [same_rows(SamplingParams(seed=i, **o), np.full(8, 9), rows=8) for i, o in enumerate(
        [{"temperature": 0.0}, {"top_k": 3}, {"repetition_penalty": 1.4}, {"logprobs": 3}, {"min_p": 0.1},
         {}, {"logit_bias": {1: 50.0}}, {"allowed_token_ids": [5, 6]}])]
    for position in range(48):
        mine = same_rows(params, np.full(8, position), rows=8)
        batch = rows_of(*others[:5], mine, *others[6:])
        mixed = random_logits(rng, 8)
        mixed[5] = logits[position]
        result, _ = call("sample", mixed, sampler.init_state(8, VOCAB), batch)
        assert int(result.ids[5]) == int(alone.ids[position])
        assert int(result.ids[0]) == mixed[0].argmax()
        assert int(result.ids[7]) in (5, 6)


def test_rows_in_chunks_are_the_same_rows(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """A CPU samples a large vocabulary a few rows at a time."""
    logits = random_logits(rng, 8)
    options = [{}, {"top_k": 3}, {"top_p": 0.5}, {"repetition_penalty": 1.4}, {"logprobs": 3}, {"temperature": 0.0},
               {"logit_bias": {1: 50.0}}, {"allowed_token_ids": [5, 6]}]
    batch = rows_of(*(same_rows(SamplingParams(seed=i, **o), np.full(8, 9), rows=8) for i, o in enumerate(options)))
    whole, state = call("sample", logits, sampler.init_state(8, VOCAB), batch)
    monkeypatch.setattr(sampler, "_CPU_CHUNK", 3 * VOCAB)
    chunks, chunk_state = jax.jit(sampler.sample)(logits, sampler.init_state(8, VOCAB), batch)
    assert sampler._chunk_rows(8, VOCAB) == 2
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(chunk_state), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(whole.ids, chunks.ids)
    for name in ("logprob", "rank", "top_ids", "top_logprobs"):
        np.testing.assert_allclose(getattr(whole, name)[4], getattr(chunks, name)[4], atol=1e-6)


def test_greedy_is_the_first_best(rng: np.random.Generator) -> None:
    logits = random_logits(rng)
    logits[3, [900, 17, 500]] = 30.0
    state = sampler.init_state(ROWS, VOCAB)
    slots = np.arange(ROWS, dtype=np.int32)
    slots[10:] = ROWS
    result, state = call("greedy", logits, state, slots)
    np.testing.assert_array_equal(result.ids, logits.argmax(-1))
    assert bool(result.finite.all())
    assert result.logprob is None
    np.testing.assert_array_equal(state.last_tokens[:10], logits.argmax(-1)[:10])
    assert not np.asarray(state.last_tokens[10:ROWS]).any()
    assert not np.asarray(state.output_counts).any()
    full, _ = call("sample", logits, state, same_rows(SamplingParams(temperature=0.0), np.zeros(ROWS)))
    np.testing.assert_array_equal(full.ids, logits.argmax(-1))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 5}, {"logit_bias": {1: 1.0}, "top_p": 0.5}],
                         ids=str)
def test_bad_logits_are_flagged_and_stay_in_their_row(poison: float, options: dict, rng: np.random.Generator) -> None:
    logits = random_logits(rng)
    clean = logits.copy()
    bad = [2, 100, 255]
    logits[bad, [0, 640, 999]] = poison
    inputs = same_rows(SamplingParams(seed=1, **options), np.arange(ROWS))
    result, _ = call("sample", logits, sampler.init_state(ROWS, VOCAB), inputs)
    greedy, _ = call("greedy", logits, sampler.init_state(ROWS, VOCAB), np.arange(ROWS, dtype=np.int32))
    expected, _ = call("sample", clean, sampler.init_state(ROWS, VOCAB), inputs)
    good = np.setdiff1d(np.arange(ROWS), bad)
    for finite in (result.finite, greedy.finite):
        assert np.flatnonzero(~np.asarray(finite)).tolist() == bad
    for ids in (result.ids, greedy.ids):
        assert np.asarray(ids).min() >= 0
        assert np.asarray(ids).max() < VOCAB
    np.testing.assert_array_equal(np.asarray(result.ids)[good], np.asarray(expected.ids)[good])


def test_a_row_with_nothing_allowed_is_flagged(rng: np.random.Generator) -> None:
    inputs = same_rows(SamplingParams(seed=1, allowed_token_ids=[3]), np.arange(ROWS))
    mask = np.asarray(inputs.mask).copy()
    mask[7] = 0
    inputs = SampleInputs(inputs.rows, inputs.bias, mask)
    result, _ = call("sample", random_logits(rng), sampler.init_state(ROWS, VOCAB), inputs)
    assert np.flatnonzero(~np.asarray(result.allowed)).tolist() == [7]
    assert np.asarray(result.finite).all()
    assert set(np.delete(np.asarray(result.ids), 7).tolist()) == {3}


def test_penalties_follow_the_sequence(rng: np.random.Generator) -> None:
    """Greedy rows with penalties over several steps, against numpy; a preempted row goes on in another slot."""
    logits = random_logits(rng, scale=0.5)
    params = SamplingParams(temperature=0.0, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.25)
    prompts = [rng.integers(0, VOCAB, rng.integers(1, 20)).tolist() for _ in range(ROWS)]
    outputs: list[list[int]] = [[] for _ in range(ROWS)]
    state = sampler.init_state(ROWS, VOCAB)
    for slot, prompt in enumerate(prompts):
        state = call("reset_slot", state, *sampler.reset_inputs(slot, prompt, [], 40))
    for step in range(8):
        if step == 4:
            # Rows 0 and 1 come back in each other's slot, with their output restored.
            prompts[:2], outputs[:2], logits[:2] = prompts[1::-1], outputs[1::-1], logits[1::-1].copy()
            for slot in (0, 1):
                head, ids = sampler.reset_inputs(slot, prompts[slot], outputs[slot], 40)
                state = call("reset_slot", state, head, ids)
                assert int(state.last_tokens[slot]) == outputs[slot][-1]
        result, state = call("sample", logits, state, same_rows(params, np.full(ROWS, step)))
        for row in range(ROWS):
            expected = penalised(logits[row], params, prompts[row], outputs[row])
            token = int(result.ids[row])
            assert expected[token] >= expected.max() - 1e-5
            outputs[row].append(token)
        np.testing.assert_array_equal(state.last_tokens[:ROWS], result.ids)
    counts = np.stack([np.bincount(o, minlength=VOCAB) for o in outputs])
    np.testing.assert_array_equal(state.output_counts[:ROWS], counts)
    assert counts.max() > 1


def test_counts_saturate() -> None:
    state = sampler.init_state(ROWS, VOCAB)
    state = sampler.SamplerState(state.last_tokens, state.output_counts + np.int16(32767), state.prompt_bits)
    inputs = same_rows(SamplingParams(temperature=0.0, logprobs=0), np.zeros(ROWS))
    _, state = call("sample", np.zeros((ROWS, VOCAB), np.float32), state, inputs)
    assert int(state.output_counts.min()) == 32767


def test_logprobs_are_those_of_the_raw_logits(rng: np.random.Generator) -> None:
    logits = random_logits(rng)
    logits[0, 100:140] = 9.0        # more ties than the list is long
    params = SamplingParams(seed=4, logprobs=5, logit_bias={3: 30.0}, temperature=0.5)
    result, _ = call("sample", logits, sampler.init_state(ROWS, VOCAB), same_rows(params, np.arange(ROWS)))
    check_logprobs(result, logits, np.asarray(result.ids))
    assert (np.asarray(result.ids) == 3).mean() > 0.9


def test_score(rng: np.random.Generator) -> None:
    logits = random_logits(rng)
    targets = rng.integers(0, VOCAB, ROWS).astype(np.int32)
    check_logprobs(call("score", logits, targets), logits, targets)


def check_logprobs(result: sampler.SampleResult | sampler.ScoreResult, logits: np.ndarray, ids: np.ndarray) -> None:
    expected = scipy.special.log_softmax(logits.astype(np.float64), -1)
    own = np.take_along_axis(expected, ids[:, None], 1)
    np.testing.assert_allclose(result.logprob, own[:, 0], atol=1e-5)
    ranks = 1 + (logits > np.take_along_axis(logits, ids[:, None], 1)).sum(-1)
    np.testing.assert_array_equal(result.rank, ranks)
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :MAX_LOGPROBS]
    np.testing.assert_array_equal(result.top_ids, order)
    np.testing.assert_allclose(result.top_logprobs, np.take_along_axis(expected, order, 1), atol=1e-5)


def test_a_vocabulary_shorter_than_the_lists() -> None:
    logits = np.tile(np.arange(10, dtype=np.float32), (2, 1))
    result = call("score", logits, np.array([9, 0], np.int32))
    assert np.asarray(result.top_ids)[0, :10].tolist() == list(range(9, -1, -1))
    assert np.isneginf(np.asarray(result.top_logprobs)[:, 10:]).all()
    assert np.asarray(result.top_ids).max() < 10
