"""Vocabularies inside GGUF files: how they are read, and what is refused."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from made_up_vocabularies import CONTROL, NORMAL, UNUSED, byte_level, metadata, sentencepiece

from jaxengine.tokenizer import Tokenizer
from jaxengine.tokenizer.score_merges import merges_from_scores


def test_an_unknown_pre_tokenizer_is_refused_by_name(load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre='deepseek-llm' names a pre-tokenizer that is not"):
        load(byte_level("deepseek-llm"))


@pytest.mark.parametrize("model", ["bert", "t5", None])
def test_an_unknown_kind_is_refused_by_name(model: str | None, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=rf"tokenizer\.ggml\.model={model!r} is not supported"):
        load(byte_level("gpt-2") | {"tokenizer.ggml.model": model})


def test_a_file_without_a_vocabulary(load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=r"model\.gguf has no vocabulary: tokenizer\.ggml\.model is missing"):
        load({"general.architecture": "llama"})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", None, "tokens must be a non-empty list"),
        ("tokens", [], "tokens must be a non-empty list"),
        ("tokens", [3] * 256, "tokens must hold strings only"),
        ("token_type", np.ones(5, np.int32), "token_type has 5 entries for 257 tokens"),
        ("merges", ["a b c"], "merges must hold pairs of tokens"),
        ("merges", ["a zz"], "vocabulary is inconsistent: .*zz"),
        ("bos_token_id", 257, "bos_token_id=257 is outside the file's vocabulary"),
        ("eot_token_id", -1, "eot_token_id=-1 is outside the file's vocabulary"),
    ],
)
def test_inconsistent_vocabularies(key: str, value: object, message: str, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=message):
        load(byte_level("gpt-2") | {f"tokenizer.ggml.{key}": value})


def test_scores_must_fit_the_tokens(load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match="scores has 3 entries for 272 tokens"):
        load(sentencepiece(scores=np.zeros(3, np.float32)))


@pytest.mark.parametrize("entry", [{"remove_extra_whitespaces": True}, {"precompiled_charsmap": np.ones(4, np.uint8)}])
def test_normalisation_that_is_not_implemented_is_refused(entry: dict, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=f"{next(iter(entry))} asks for a text normalisation"):
        load(sentencepiece(**entry))


@pytest.mark.parametrize(
    ("pre", "declared", "expected"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", None, False), ("gpt-2", True, True)],
)
def test_bos_where_the_file_or_its_kind_says_so(
    pre: str, declared: bool | None, expected: bool, load: Callable[..., Tokenizer]
):
    entries = {} if declared is None else {"add_bos_token": declared}
    tokenizer = load(byte_level(pre, special=["<bos>"], bos="<bos>", **entries))
    assert tokenizer.bos_token_id == 257
    assert (tokenizer.encode("a")[0] == 257) is expected
    assert 257 not in tokenizer.encode("a", add_special_tokens=False)


def test_eos_is_added_where_the_file_says_so(load: Callable[..., Tokenizer]):
    tokenizer = load(sentencepiece(add_eos_token=True, add_bos_token=False))
    assert tokenizer.encode("a") == [*tokenizer.encode("a", False), 2]


def _spelled(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer._vocabulary.token_of(i) for i in tokenizer.encode(text, False)]


def test_pieces_by_score_bytes_and_the_dummy_prefix(load: Callable[..., Tokenizer]):
    tokenizer = load(sentencepiece())
    assert tokenizer.encode("the") == [1, tokenizer.token_id("▁the")]
    # "▁t" scores best, and joins with "he", which scores next.
    assert _spelled(tokenizer, "the the") == ["▁the", "▁the"]
    assert _spelled(tokenizer, " 日é€") == ["▁▁", "日", "é", "<0xE2>", "<0x82>", "<0xAC>"]
    assert _spelled(tokenizer, "a</s>a") == ["▁a", "</s>", "▁a"]
    without = load(sentencepiece(add_space_prefix=False))
    assert _spelled(without, "the") == ["t", "he"]
    assert without.decode([without.token_id("▁the") or 0]) == " the"
    for text in ("the the", " 日é€", "", "  a"):
        for each in (tokenizer, without):
            assert each.decode(each.encode(text)) == text


def test_user_defined_tokens_stay_in_the_text(load: Callable[..., Tokenizer]):
    tokenizer = load(sentencepiece(add_space_prefix=False))
    user = tokenizer.token_id("▁▁user")
    assert user is not None
    assert user not in tokenizer.special_token_ids
    assert tokenizer.encode("a▁▁user", False)[-1] == user
    assert tokenizer.decode([user]) == "  user"


def test_control_tokens_are_special_and_unused_ones_unreachable(load: Callable[..., Tokenizer]):
    tokens = [("a", NORMAL, 0.0), ("<unused>", UNUSED, 0.0), ("<ctl>", CONTROL, 0.0)]
    tokens += [(char, NORMAL, 0.0) for char in "<>unsedctl"]
    tokens += [("un", NORMAL, 0.0)]
    tokenizer = load(metadata("gpt2", tokens, pre="gpt-2", merges=["u n"]))
    assert tokenizer.special_token_ids == {2}
    assert tokenizer.encode("<ctl>a") == [2, 0]
    assert 1 not in tokenizer.encode("<unused>")
    assert tokenizer.decode([0, 2, 0]) == "aa"
    assert tokenizer.decode([0, 2, 0], skip_special_tokens=False) == "a<ctl>a"
    assert tokenizer.token_text(2) == "<ctl>"


def test_merges_are_every_cut_into_tokens_by_score_then_length():
    tokens = ["a", "b", "c", "ab", "bc", "abc", "", "d", "cd"]
    scores = [0, 0, 0, -2, -1, -1, 0, 0, -1]
    assert merges_from_scores(tokens, scores) == [("ab", "c"), ("a", "bc"), ("b", "c"), ("c", "d"), ("a", "b")]
    assert merges_from_scores(["a", "b"], [0, 0]) == []


def test_merges_equal_a_plain_search():
    rng = np.random.default_rng(0)
    tokens = sorted({"".join(rng.choice(list("ab日"), rng.integers(1, 8))) for _ in range(400)})
    scores = rng.integers(-5, 0, len(tokens)).tolist()
    known = set(tokens)
    cuts = [
        (-scores[i], -at, at - len(token), i)      # the last is minus the right part's length
        for i, token in enumerate(tokens) for at in range(1, len(token)) if token[:at] in known and token[at:] in known
    ]
    expected = [(tokens[i][: -minus_left], tokens[i][-minus_left :]) for _, minus_left, _, i in sorted(cuts)]
    assert len(expected) > 500
    assert merges_from_scores(tokens, scores) == expected


def test_arrays_may_be_lists(load: Callable[..., Tokenizer]):
    """As they come from a converted checkpoint's JSON, where read_gguf gives numpy arrays."""
    entries = sentencepiece()
    arrays = {key: np.array(entries[f"tokenizer.ggml.{key}"]) for key in ("scores", "token_type")}
    from_arrays = load(entries | {f"tokenizer.ggml.{key}": value for key, value in arrays.items()})
    assert from_arrays.encode("the 日") == load(entries).encode("the 日")


def test_a_whole_word_in_the_vocabulary_is_not_merged_up(load: Callable[..., Tokenizer]):
    """Llama 3's rule: some of its tokens cannot be reached by merges."""
    tokens = [(text, NORMAL, 0.0) for text in ("a", "b", "c", "ab", "abc")]
    assert load(metadata("gpt2", tokens, pre="llama-bpe", merges=["a b"])).encode("abc") == [4]
    assert load(metadata("gpt2", tokens, pre="gpt-2", merges=["a b"])).encode("abc") == [3, 2]


def test_llama_3_digits_against_gpt_2_s(load: Callable[..., Tokenizer]):
    """The rule's name matters: it decides where numbers are cut."""
    merges = [f"{left} {right}" for left, right in pairwise("1234")]
    whole = load(byte_level("gpt-2", merges=[*merges, "12 34", "1234 1234"]))
    split = load(byte_level("smollm", merges=merges))
    assert _spelled(whole, "12341234") == ["12341234"]
    assert _spelled(split, "1234") == list("1234")
