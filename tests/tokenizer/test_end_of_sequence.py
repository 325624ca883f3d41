"""End of sequence, gathered from every place that declares it; default sampling values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_vocabularies import byte_level

from jaxengine.generation_defaults import default_sampling
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import SamplingParams

SPECIAL = ["<s>", "</s>", "<|eot_id|>", "<|eom_id|>"]      # ids 257 ...
MODEL = byte_level("gpt-2", special=SPECIAL)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, set()),
        ({"generation_config": {"eos_token_id": 258}}, {258}),
        ({"generation_config": {"eos_token_id": [258, 259]}}, {258, 259}),
        ({"config": {"eos_token_id": [258]}, "generation_config": {"eos_token_id": 259}}, {258, 259}),
        ({"config": {"text_config": {"eos_token_id": 260}}}, {260}),
        ({"config": {"eos_token_id": None}}, set()),
    ],
)
def test_configs(configs: dict[str, Any], expected: set[int], load: Callable[..., Tokenizer]):
    assert load(MODEL, **configs).eos_token_ids == expected


@pytest.mark.parametrize("value", ["2", True, -1, [2, None], 2.0])
def test_ids_that_are_none(value: Any, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id=.* must be a token id or a list"):
        load(MODEL, generation_config={"eos_token_id": value})


def test_gguf_declares_up_to_three(load: Callable[..., Tokenizer]):
    model = byte_level("gpt-2", special=SPECIAL, eos="</s>", eot="<|eot_id|>", eom="<|eom_id|>")
    assert load(model).eos_token_ids == {258, 259, 260}


def test_a_turn_end_that_the_template_writes(load: Callable[..., Tokenizer]):
    model = byte_level("gpt-2", special=SPECIAL, eos="</s>")
    assert load(model).eos_token_ids == {258}
    assert load(model, chat_template="{{ messages[0].content }}<|eot_id|>").eos_token_ids == {258, 259}
    # A name that is no special token of this vocabulary ends nothing.
    assert load(model, chat_template="{{ messages[0].content }}<|im_end|>").eos_token_ids == {258}


def test_the_llama_3_form_ends_at_either_token(golden: Path, load: Callable[..., Tokenizer]):
    folder = golden / "tokenizers" / "llama3_form"
    generation_config = json.loads((folder / "generation_config.json").read_text())
    assert load(folder).eos_token_ids == {421}
    assert load(folder, generation_config=generation_config).eos_token_ids == {421, 422}


def test_default_sampling_takes_what_vllm_takes():
    published = {
        "do_sample": False, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None, "repetition_penalty": 1.1,
        "max_new_tokens": 64, "eos_token_id": [1, 2], "length_penalty": 2.0,
    }
    defaults = default_sampling(published)
    assert defaults == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1, "max_tokens": 64,
    }
    assert SamplingParams(**defaults).max_tokens == 64  # type: ignore[arg-type]
    assert default_sampling({}) == {}


@pytest.mark.parametrize("value", ["0.6", True, [1]])
def test_default_sampling_refuses_what_is_no_number(value: Any):
    with pytest.raises(ValueError, match=r"generation_config\.json: temperature=.* must be a number"):
        default_sampling({"temperature": value})
