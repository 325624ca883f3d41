"""Streaming text: what the pieces add up to, and what is held back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_vocabularies import sentencepiece, without_broken_characters

from jaxengine.tokenizer import Tokenizer

Stream = tuple[list[list[int]], list[list[int]], bool]     # pieces of the prompt and of the output, skip special?
BYTES = st.sampled_from([0xE2, 0x82, 0xAC, 0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xED, 0xA0])


@st.composite
def streams(draw: st.DrawFn, size: int, byte_ids: list[int], special: list[int]) -> Stream:
    """Prompt and output as pieces of ids: anything in the vocabulary, many bytes and special tokens."""
    tokens = st.one_of(st.integers(0, size - 1), BYTES.map(byte_ids.__getitem__), st.sampled_from(special))
    pieces = st.lists(st.lists(tokens, max_size=4), max_size=5)
    return draw(pieces), draw(pieces), draw(st.booleans())


def _flat(pieces: list[list[int]]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece]


def _added(whole: str, prompt: str) -> str:
    """What the output adds: the whole text less what it has in common with the prompt's."""
    at = 0
    while at < min(len(whole), len(prompt)) and whole[at] == prompt[at]:
        at += 1
    return whole[at:]


def _check(tokenizer: Tokenizer, stream: Stream, decode: Callable[[list[int]], str]) -> None:
    prompt, output, skip = stream
    kept = [i for i in _flat(prompt) + _flat(output) if not skip or i not in tokenizer.special_token_ids]
    num_prompt = sum(1 for i in _flat(prompt) if not skip or i not in tokenizer.special_token_ids)
    detokenizer = tokenizer.detokenizer(_flat(prompt), skip_special_tokens=skip)
    text = "".join([detokenizer.push(i) for i in _flat(output)]) + detokenizer.finish()
    assert text == _added(decode(kept), decode(kept[:num_prompt]))
    assert tokenizer.decode(_flat(prompt) + _flat(output), skip) == decode(kept)


def test_byte_level_streams_equal_the_library_s_decoding(smollm2_tokenizer: Tokenizer):
    library = smollm2_tokenizer._vocabulary._tokenizer      # type: ignore[attr-defined]
    of_byte = {smollm2_tokenizer.token_bytes(i): i for i in range(smollm2_tokenizer.vocab_size)}
    byte_ids = [of_byte.get(bytes([b]), 0) for b in range(256)]      # some bytes have no token
    special = sorted(smollm2_tokenizer.special_token_ids)[:3]

    @settings(max_examples=300)
    @given(streams(smollm2_tokenizer.vocab_size, byte_ids, special))
    def check(stream: Stream):
        _check(smollm2_tokenizer, stream, lambda ids: library.decode(ids, skip_special_tokens=False))

    check()


def test_byte_fallback_streams_equal_sentencepiece_s_reading(gemma3_tokenizer: Tokenizer):
    first = gemma3_tokenizer.token_id("<0x00>")
    assert first is not None
    _check_byte_fallback(gemma3_tokenizer, first, strip=False)


def test_byte_fallback_streams_with_a_dummy_prefix(load: Callable[..., Tokenizer]):
    _check_byte_fallback(load(sentencepiece()), 3, strip=True)


def _check_byte_fallback(tokenizer: Tokenizer, first_byte: int, strip: bool) -> None:
    def decode(ids: list[int]) -> str:
        data = b""
        for i in ids:
            spelled = tokenizer._vocabulary.token_of(i) or ""
            is_byte = first_byte <= i < first_byte + 256
            data += bytes([i - first_byte]) if is_byte else spelled.replace("▁", " ").encode()
        text = without_broken_characters(data)
        return text.removeprefix(" ") if strip else text

    byte_ids = [first_byte + b for b in range(256)]

    @settings(max_examples=300)
    @given(streams(tokenizer.vocab_size, byte_ids, sorted(tokenizer.special_token_ids)[:3]))
    def check(stream: Stream):
        _check(tokenizer, stream, decode)

    check()


@pytest.mark.parametrize("skip", [True, False])
def test_the_library_agrees_where_bytes_are_whole_characters(skip: bool, gemma3_tokenizer: Tokenizer):
    library = gemma3_tokenizer._vocabulary._tokenizer       # type: ignore[attr-defined]
    ids = gemma3_tokenizer.encode("a \u0f00\U00010380 b<end_of_turn>\n\n   \u2fff\u0b9f end")
    assert any(b"<0x" in (library.id_to_token(i) or "").encode() for i in ids)
    assert gemma3_tokenizer.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


def test_half_characters_are_held_back(load: Callable[..., Tokenizer]):
    tokenizer = load(sentencepiece())
    stream = tokenizer.detokenizer()
    euro = [3 + byte for byte in "€".encode()]
    assert [stream.push(i) for i in euro] == ["", "", "€"]
    assert [stream.push(i) for i in euro[:2]] == ["", ""]
    assert stream.finish() == "\ufffd\ufffd"


def test_the_first_word_keeps_its_space_only_after_a_prompt(load: Callable[..., Tokenizer]):
    tokenizer = load(sentencepiece())
    the = tokenizer.token_id("▁the")
    assert the is not None
    assert tokenizer.detokenizer([1, the]).push(the) == " the"
    stream = tokenizer.detokenizer([1])
    assert [stream.push(the), stream.push(the)] == ["the", " the"]
    assert tokenizer.detokenizer([1], skip_special_tokens=False).push(the) == " the"
    assert tokenizer.decode([1, the, the]) == "the the"
    assert tokenizer.token_text(the) == " the"


def test_a_prompt_that_ends_within_a_character(load: Callable[..., Tokenizer]):
    tokenizer = load(sentencepiece())
    euro = [3 + byte for byte in "€".encode()]
    a = tokenizer.token_id("a")
    assert a is not None
    stream = tokenizer.detokenizer(euro[:2])
    assert stream.push(euro[2]) + stream.finish() == "€"
    stream = tokenizer.detokenizer(euro[:2])
    assert stream.push(a) + stream.finish() == "a"
    assert tokenizer.detokenizer(euro[:2]).finish() == ""
    face = [3 + byte for byte in "\U0001f600".encode()]
    assert tokenizer.detokenizer(face[:3]).push(face[3]) == "\U0001f600"


def test_ids_without_a_token_are_nothing(smollm2_tokenizer: Tokenizer, golden: Path, load: Callable[..., Tokenizer]):
    for tokenizer in (smollm2_tokenizer, load(golden / "tokenizers" / "sentencepiece_form")):
        assert tokenizer.decode([tokenizer.vocab_size + 5, *tokenizer.encode("a", False)]) == "a"
        with pytest.raises(ValueError, match="token id -1 is negative"):
            tokenizer.decode([3, -1])


def test_cost_does_not_grow_with_the_text(smollm2_tokenizer: Tokenizer):
    """Nothing but the last few bytes is kept between calls."""
    stream = smollm2_tokenizer.detokenizer([1] * 50)
    for token_id in smollm2_tokenizer.encode("Many words follow, one after the other. " * 200, False):
        stream.push(token_id)
    kept = [value for value in vars(stream).values() if isinstance(value, (str, bytes, list))]
    assert not kept
    assert len(stream._decoder.getstate()[0]) < 4
