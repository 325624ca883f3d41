"""Both demo models: ids, texts and prompts equal to the reference's."""

import json
from pathlib import Path

import pytest

from jaxengine.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest, golden: Path) -> tuple[Tokenizer, dict]:
    file = {"smollm2": "reference_smollm2.json", "gemma3": "reference_gemma3_270m.json"}[request.param]
    reference = json.loads((golden / file).read_text(encoding="utf-8"))
    return request.getfixturevalue(f"{request.param}_tokenizer"), reference


def test_ids_equal_upstream(model: tuple[Tokenizer, dict]):
    tokenizer, reference = model
    assert len(reference["tokenizer_cases"]) >= 11
    for case in reference["tokenizer_cases"]:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]


def test_gemma_s_white_space_and_marks(gemma3_tokenizer: Tokenizer, golden: Path):
    cases = json.loads((golden / "tokenizers" / "gemma3_ids.json").read_text(encoding="utf-8"))
    assert len(cases) > 90
    for case in cases:
        assert gemma3_tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]


def test_prompts_equal_the_reference(model: tuple[Tokenizer, dict]):
    tokenizer, reference = model
    for case in reference["cases"]:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"], case["name"]
        if "messages" in case:
            assert tokenizer.apply_chat_template(case["messages"]) == case["prompt"], case["name"]
            assert tokenizer.encode_chat(case["messages"]) == case["prompt_ids"], case["name"]


def test_outputs_equal_the_reference(model: tuple[Tokenizer, dict]):
    tokenizer, reference = model
    for case in reference["cases"]:
        ids = case["greedy_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == case["greedy_text"], case["name"]
        stream = tokenizer.detokenizer(case["prompt_ids"], skip_special_tokens=False)
        assert "".join(stream.push(i) for i in ids) + stream.finish() == case["greedy_text"], case["name"]


def test_text_comes_back(model: tuple[Tokenizer, dict]):
    tokenizer, reference = model
    texts = [case["text"] for case in reference["tokenizer_cases"]]
    for text in [*texts, "", " ", "\u00e9\u0301 \U0001f469\u200d\U0001f52c"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_beginning_and_end_as_declared(model: tuple[Tokenizer, dict]):
    tokenizer, reference = model
    beginning = [reference["bos_token_id"]] if reference["add_bos"] else []
    assert tokenizer.encode("") == beginning
    assert reference["eos_token_id"] in tokenizer.eos_token_ids


def test_a_base_model_has_no_template(gemma3_tokenizer: Tokenizer):
    assert gemma3_tokenizer.chat_template is None
    with pytest.raises(ValueError, match="has no chat template; use plain prompts, or give a template with --chat"):
        gemma3_tokenizer.encode_chat([{"role": "user", "content": "hi"}])
