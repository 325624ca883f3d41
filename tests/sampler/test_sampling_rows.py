"""The host's side: what a request turns into, and what is refused by name."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxengine.engine.sampling_batch import (
    BIASED,
    FLAGS,
    MASKED,
    MAX_BIAS,
    POSITION,
    SLOT,
    TEMPERATURE,
    needs_full,
    pack_ids,
    validate_bans,
    validate_ids,
)
from jaxengine.engine.sampling_rows import RowBuilder, abstract_inputs
from jaxengine.types import Request, SamplingParams, Sequence

VOCAB = 70


def sequence(seq_id: int, params: SamplingParams, output: list[int] | None = None, index: int = 0) -> Sequence:
    return Sequence(seq_id, Request(str(seq_id), [1, 2], params), index, [1, 2, *(output or [])])


def builder(*sequences: Sequence, eos: tuple[int, ...] = (), bad_words: tuple[tuple[int, ...], ...] = ()):
    rows = RowBuilder(8, VOCAB)
    for seq in sequences:
        rows.admit(seq, eos, bad_words)
    return rows


def sample(seq: Sequence, slot: int) -> SimpleNamespace:
    return SimpleNamespace(seq=seq, slot=slot, position=len(seq.token_ids))


def biases(rows: RowBuilder, seq: Sequence) -> dict[int, float]:
    built = rows.build([sample(seq, 0)], 2)
    if built.bias is None:
        assert not built.rows[0, FLAGS] & BIASED
        return {}
    assert built.rows[0, FLAGS] & BIASED
    assert (built.bias[1, 0] == -1).all()
    used = built.bias[0, 0] >= 0
    return dict(zip(built.bias[0, 0, used].tolist(), built.bias[0, 1].view(np.float32)[used].tolist(), strict=True))


def test_rows_by_slot_and_padding() -> None:
    first, second = (sequence(i, SamplingParams(seed=i, temperature=0.5 + i)) for i in range(2))
    stranger = sequence(9, SamplingParams(temperature=0.0))
    built = builder(first, second).build([sample(second, 4), sample(stranger, 0), sample(first, 2)], 6)
    assert built.rows[:, SLOT].tolist() == [4, 0, 2, 8, 8, 8]
    assert built.rows[:3, POSITION].tolist() == [2, 2, 2]
    assert built.rows[:, TEMPERATURE].view(np.float32).tolist() == [1.5, 0, 0.5, 0, 0, 0]
    assert built.bias is None
    assert built.mask is None


def test_a_slot_changes_hands() -> None:
    hot, cold = sequence(0, SamplingParams(seed=1, temperature=2.0)), sequence(1, SamplingParams(temperature=0.0))
    rows = builder(hot, cold)
    for seq, temperature in ((hot, 2.0), (cold, 0.0), (hot, 2.0)):
        built = rows.build([sample(seq, 3)], 2)
        assert built.rows[0, TEMPERATURE].view(np.float32) == temperature


def test_rows_match_what_is_compiled_for() -> None:
    seq = sequence(0, SamplingParams(seed=1, logit_bias={3: 1.0}, allowed_token_ids=[3, 4]))
    built = builder(seq).build([sample(seq, 0)], 4)
    shape = abstract_inputs(4, VOCAB)
    for name in ("rows", "bias", "mask"):
        assert getattr(built, name).shape == getattr(shape, name).shape
        assert getattr(built, name).dtype == getattr(shape, name).dtype


def test_min_tokens_hold_back_every_stop_token() -> None:
    params = SamplingParams(seed=0, min_tokens=2, stop_token_ids=[7], logit_bias={7: 5.0, 8: 1.0})
    held = {7: -np.inf, 60: -np.inf, 8: 1.0}
    for output in ([], [3], [3, 3]):
        seq = sequence(0, params, output)
        expected = held if len(output) < 2 else {7: 5.0, 8: 1.0}
        assert biases(builder(seq, eos=(60,)), seq) == expected
        assert needs_full(params.replace(temperature=0.0, logit_bias=None), len(output)) == (len(output) < 2)


@pytest.mark.parametrize(("output", "banned"), [
    ([], {5}), ([3], {5}), ([10], {5, 11}), ([10, 11], {5, 12}), ([9, 10, 11], {5, 12}), ([11], {5}),
    ([10, 11, 12], {5}),
])
def test_bad_words_ban_their_last_token(output: list[int], banned: set[int]) -> None:
    """The words (5), (10, 11) and (10, 11, 12); the prompt does not count."""
    seq = sequence(0, SamplingParams(seed=0, bad_words=["x"]), output)
    entries = biases(builder(seq, bad_words=((5,), (10, 11), (10, 11, 12))), seq)
    assert set(entries) == banned
    assert set(entries.values()) == {-np.inf}


def test_masks_meet() -> None:
    plain, own = sequence(0, SamplingParams(seed=0)), sequence(1, SamplingParams(seed=0, allowed_token_ids=[1, 32, 69]))
    rows = builder(plain, own)
    samples = [sample(plain, 0), sample(own, 1)]
    built = rows.build(samples, 2)
    assert built.mask is not None
    assert built.mask[1].tolist() == [2, 1, 1 << 5]
    assert (built.rows[:, FLAGS] & MASKED > 0).tolist() == [False, True]
    grammar = pack_ids([32, 33], VOCAB)
    built = rows.build(samples, 2, {0: grammar, 1: grammar})
    assert built.mask is not None
    assert built.mask.tolist() == [[0, 3, 0], [0, 1, 0]]


@pytest.mark.parametrize(("options", "full"), [
    ({"temperature": 0.0}, False), ({"temperature": 1e-6}, False), ({"top_k": 1}, False), ({}, True),
    ({"temperature": 0.0, "top_p": 0.5, "min_p": 0.5, "top_k": 5, "seed": 3}, False),
    ({"temperature": 0.0, "logprobs": 0}, True), ({"temperature": 0.0, "repetition_penalty": 1.1}, True),
    ({"temperature": 0.0, "presence_penalty": -1}, True), ({"temperature": 0.0, "frequency_penalty": 1}, True),
    ({"temperature": 0.0, "logit_bias": {1: 1.0}}, True), ({"temperature": 0.0, "allowed_token_ids": [1]}, True),
    ({"temperature": 0.0, "bad_words": ["a"]}, True), ({"temperature": 0.0, "min_tokens": 1}, True),
    ({"temperature": 0.0, "logit_bias": {}}, False), ({"temperature": 0.0, "prompt_logprobs": 3}, False),
])
def test_who_needs_the_full_sampler(options: dict, full: bool) -> None:
    assert needs_full(SamplingParams(**options)) == full


@pytest.mark.parametrize("name", ["allowed_token_ids", "logit_bias", "stop_token_ids"])
def test_ids_beyond_the_vocabulary_are_refused_by_name(name: str) -> None:
    for token, fits in ((VOCAB - 1, True), (VOCAB, False)):
        params = SamplingParams(**{name: {token: 1.0} if name == "logit_bias" else [token]})
        if fits:
            validate_ids(params, VOCAB)
        else:
            with pytest.raises(ValueError, match=f"{name}: token id 70 "):
                validate_ids(params, VOCAB)


def test_too_many_biases_are_refused_by_name() -> None:
    params = SamplingParams(logit_bias=dict.fromkeys(range(MAX_BIAS), 1.0))
    validate_bans(params, [9], [])
    with pytest.raises(ValueError, match="logit_bias"):
        validate_bans(params, [9], [[1]])
    with pytest.raises(ValueError, match="min_tokens"):
        validate_bans(params.replace(min_tokens=1), [9], [])
