"""What is drawn, and how often, against float64 probabilities made by sorting."""

import numpy as np
import pytest
import scipy.stats
from sampler_reference import ROWS, VOCAB, call, draws, probabilities

from jaxengine.engine import sampler
from jaxengine.types import SamplingParams

COMBINATIONS = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.0},
    "top_k 2": {"top_k": 2},
    "top_k 64": {"top_k": 64},
    "top_k 65": {"top_k": 65},
    "top_k 300": {"top_k": 300, "temperature": 1.5},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.5": {"top_p": 0.5},
    "top_p 0.05": {"top_p": 0.05, "temperature": 2.0},
    "min_p 0.1": {"min_p": 0.1},
    "small top_k, top_p": {"top_k": 40, "top_p": 0.7},
    "large top_k, top_p": {"top_k": 200, "top_p": 0.8, "temperature": 1.5},
    "min_p, top_k, top_p": {"min_p": 0.02, "top_k": 50, "top_p": 0.9},
    "min_p, top_p": {"min_p": 0.05, "top_p": 0.9, "temperature": 1.5},
    "bias": {"logit_bias": {3: 4.0, 5: -100.0, 700: 6.0}, "top_p": 0.9},
    "allowed": {"allowed_token_ids": [1, 31, 32, 500, 999], "temperature": 2.0},
}
NUMBER = 16 * ROWS


def peaked(rng: np.random.Generator, scale: float = 2.0) -> np.ndarray:
    return (scale * rng.standard_normal(VOCAB)).astype(np.float32)


def check(ids: np.ndarray, p: np.ndarray) -> None:
    """Pearson's test with rare tokens taken together; the seeds are fixed, so this passes or fails for ever."""
    counts = np.bincount(ids, minlength=len(p))
    assert not counts[p == 0].any(), "a token that is not kept was drawn"
    expected = p * len(ids)
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    present = expected > 0
    if present.sum() > 1:
        assert scipy.stats.chisquare(observed[present], expected[present]).pvalue > 1e-3


@pytest.mark.parametrize("name", COMBINATIONS)
def test_distribution(name: str, rng: np.random.Generator) -> None:
    logits = peaked(rng)
    params = SamplingParams(seed=11, **COMBINATIONS[name])
    check(draws(logits, params, NUMBER), probabilities(logits, params))


@pytest.mark.parametrize("name", ["plain", "top_p 0.5", "small top_k, top_p"])
def test_distribution_over_seeds_and_samples(name: str, rng: np.random.Generator) -> None:
    """As above, but each seed and each of a request's samples gives only a few of the draws."""
    logits = peaked(rng)
    cases = [(seed * 2**31 + 17, index) for seed in range(8) for index in range(2)]
    params = [SamplingParams(seed=seed, **COMBINATIONS[name]) for seed, _ in cases]
    ids = [draws(logits, p, ROWS, index) for p, (_, index) in zip(params, cases, strict=True)]
    check(np.concatenate(ids), probabilities(logits, params[0]))


def test_penalties_distribution(rng: np.random.Generator) -> None:
    logits = peaked(rng)
    prompt, output = [4, 5, 6], [int(t) for t in np.argsort(-logits)[[0, 0, 1, 5]]]
    params = SamplingParams(
        seed=3, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.6
    )

    def state() -> sampler.SamplerState:
        fresh = sampler.init_state(ROWS, VOCAB)
        head, ids = sampler.reset_inputs(0, prompt, output, 16)
        one = call("reset_slot", fresh, head, ids)
        return sampler.SamplerState(
            one.last_tokens, one.output_counts.at[:].set(one.output_counts[:1]),
            one.prompt_bits.at[:].set(one.prompt_bits[:1]),
        )

    check(draws(logits, params, NUMBER, state=state), probabilities(logits, params, prompt, output))


def test_rare_tokens_are_not_starved() -> None:
    """One token of 98%, the others 2e-5 each: the rare ones come as often as they should, all over the range."""
    logits = np.full(VOCAB, np.log(2e-5), np.float32)
    logits[0] = np.log(1 - 2e-5 * (VOCAB - 1))
    ids = draws(logits, SamplingParams(seed=5), 64 * ROWS)
    rare = ids[ids > 0]
    expected = 2e-5 * (VOCAB - 1) * len(ids)
    assert abs(len(rare) - expected) < 4 * np.sqrt(expected)
    assert scipy.stats.kstest(rare / VOCAB, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("options", [
    {"top_k": 1}, {"top_p": 1e-9}, {"top_p": 1e-300}, {"min_p": 1.0}, {"temperature": 1e-5}, {"temperature": 1e-300},
    {"top_k": 5, "top_p": 1e-9}, {"top_k": 500, "min_p": 1.0}, {"logit_bias": {77: 100.0}, "temperature": 0.5},
    {"allowed_token_ids": [77]}, {"temperature": 0.0, "logit_bias": {77: 100.0}},
], ids=str)
def test_extremes_leave_one_token(options: dict, rng: np.random.Generator) -> None:
    logits = peaked(rng)
    best = 77 if {"logit_bias", "allowed_token_ids"} & options.keys() else logits.argmax()
    assert set(draws(logits, SamplingParams(seed=2, **options), ROWS).tolist()) == {best}


def test_ties_of_the_threshold_are_kept_together() -> None:
    """Ten equal best tokens: top_p keeps all or, small top_k aside, none of them."""
    logits = np.full(VOCAB, -10.0, np.float32)
    logits[50:60] = 5.0
    assert set(draws(logits, SamplingParams(seed=2, top_p=0.2), ROWS).tolist()) == set(range(50, 60))
    assert set(draws(logits, SamplingParams(seed=2, top_k=3), ROWS).tolist()) == {50, 51, 52}


def test_equal_logits_are_uniform() -> None:
    ids = draws(np.zeros(VOCAB, np.float32), SamplingParams(seed=9, top_p=0.5, top_k=100), NUMBER)
    check(ids, np.full(VOCAB, 1 / VOCAB))    # all tie at both thresholds
