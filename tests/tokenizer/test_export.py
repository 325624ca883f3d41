"""A GGUF vocabulary written as tokenizer.json gives the ids that the GGUF file gives."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_vocabularies import byte_level, sentencepiece

from jaxengine.checkpoint import open_checkpoint
from jaxengine.tokenizer import Tokenizer
from jaxengine.tokenizer.export import write_huggingface_tokenizer

TEXTS = ("the  the <s> €", " a\n\nthe", "aaa", "")


VOCABULARIES = {
    "sentencepiece": sentencepiece(),
    "byte_level": byte_level("llama-bpe", special=["<s>", "</s>"], bos="<s>", eos="</s>"),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_made_up_vocabularies(vocabulary: str, load: Callable[..., Tokenizer], tmp_path: Path):
    metadata = VOCABULARIES[vocabulary] | {"tokenizer.chat_template": "{{ messages[0].content }}"}
    write_huggingface_tokenizer(metadata, tmp_path)
    before, after = load(metadata), load(tmp_path)
    for text in TEXTS:
        ids = before.encode(text)
        assert after.encode(text) == ids
        assert after.decode(ids) == before.decode(ids)
    assert after.bos_token_id == before.bos_token_id
    assert after.special_token_ids == before.special_token_ids
    assert after.eos_token_ids == before.eos_token_ids
    assert after.chat_template == before.chat_template == "{{ messages[0].content }}"


def test_the_demo_model(
    smollm2: str, smollm2_tokenizer: Tokenizer, golden: Path, load: Callable[..., Tokenizer], tmp_path: Path
):
    checkpoint = open_checkpoint(smollm2, progress=False)
    write_huggingface_tokenizer(checkpoint.metadata, tmp_path)
    after = load(tmp_path)
    for case in json.loads((golden / "reference_smollm2.json").read_text(encoding="utf-8"))["tokenizer_cases"]:
        assert after.encode(case["text"], add_special_tokens=False) == case["ids"]
    messages = [{"role": "user", "content": "Hello"}]
    assert after.encode_chat(messages) == smollm2_tokenizer.encode_chat(messages)
    assert after.eos_token_ids == smollm2_tokenizer.eos_token_ids


def test_without_a_vocabulary_nothing_is_written(tmp_path: Path):
    write_huggingface_tokenizer({"general.architecture": "llama"}, tmp_path)
    assert not list(tmp_path.iterdir())
