"""The files of a Hugging Face folder: what they may say, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxengine.tokenizer import Tokenizer

Edit = Callable[..., Path]


@pytest.fixture
def edited(golden: Path, tmp_path: Path) -> Edit:
    """edited(form, tokenizer=..., **config): a copy of a folder with entries replaced (None: left out)."""

    def edited(form: str, tokenizer: dict[str, Any] | None = None, **config: Any) -> Path:
        folder = golden / "tokenizers" / form
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        for name, changes in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            if changes:
                entries = json.loads((tmp_path / name).read_text(encoding="utf-8")) | changes
                entries = {key: value for key, value in entries.items() if value is not None}
                (tmp_path / name).write_text(json.dumps(entries), encoding="utf-8")
        return tmp_path

    return edited


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, ["<|begin_of_text|>", "a"]),
        ({"add_bos_token": True}, ["<|begin_of_text|>", "a"]),
        ({"add_bos_token": False}, ["a"]),
        ({"add_eos_token": True}, ["<|begin_of_text|>", "a", "<|end_of_text|>"]),
        ({"add_bos_token": False, "add_eos_token": True}, ["a", "<|end_of_text|>"]),
    ],
)
def test_bos_and_eos_switches(switches: dict, expected: list[str], edited: Edit, load: Callable[..., Tokenizer]):
    tokenizer = load(edited("llama3_form", **switches))
    assert [tokenizer.token_text(i) for i in tokenizer.encode("a")] == expected
    assert [tokenizer.token_text(i) for i in tokenizer.encode("a", add_special_tokens=False)] == ["a"]


def test_a_switch_without_its_token(edited: Edit, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: add_bos_token is true, but bos_token is not in"):
        load(edited("llama3_form", add_bos_token=True, bos_token=None))
    with pytest.raises(ValueError, match="add_bos_token='yes' must be true or false"):
        load(edited("llama3_form", add_bos_token="yes"))
    with pytest.raises(ValueError, match="eos_token=7 must be a token's text"):
        load(edited("llama3_form", eos_token=7))


def test_older_special_tokens_map(edited: Edit, load: Callable[..., Tokenizer]):
    folder = edited("llama3_form", eos_token=None)
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|eot_id|>"}}')
    assert load(folder).eos_token_ids == {422}


def test_tokens_that_only_the_config_declares_special(edited: Edit, load: Callable[..., Tokenizer]):
    """Flags of added_tokens_decoder win over tokenizer.json; a token without a row in the model gets no id."""
    think = {"content": "<think>", "special": True}
    tokenizer = load(edited("qwen_form", added_tokens_decoder={"423": think}, pad_token="<|nowhere|>"))
    assert tokenizer.vocab_size == 425
    assert 423 in tokenizer.special_token_ids
    assert tokenizer.decode(tokenizer.encode("a<think>b")) == "ab"
    tokenizer = load(edited("qwen_form", unk_token="b"))
    assert tokenizer.token_id("b") in tokenizer.special_token_ids


def test_truncation_and_padding_are_off(edited: Edit, load: Callable[..., Tokenizer]):
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
           "pad_token": "<|endoftext|>"}
    published = load(edited("qwen_form"))
    tokenizer = load(edited("qwen_form", tokenizer={"truncation": cut, "padding": pad}))
    for text in ("a", "many words follow one after the other"):
        assert tokenizer.encode(text) == published.encode(text)


def test_templates_in_files_of_their_own(edited: Edit, load: Callable[..., Tokenizer]):
    folder = edited("qwen_form")
    ask, tools = [{"role": "user", "content": "hi"}], [{"name": "find"}]
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    (folder / "chat_template.jinja").write_text("plain")
    assert load(folder).apply_chat_template(ask) == "plain"
    assert load(folder).apply_chat_template(ask, tools=tools) == "with tools"
    (folder / "chat_template.jinja").unlink()
    assert "<|im_start|>user\nhi" in load(folder).apply_chat_template(ask)
    folder = edited("qwen_form", chat_template=None)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    assert load(folder).apply_chat_template(ask) == "of the processor"


@pytest.mark.parametrize("templates", [[{"name": "default"}], {"default": "x"}, 3, ["x"]])
def test_malformed_templates(templates: Any, edited: Edit, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match="chat_template must be a template's text or a list"):
        load(edited("llama3_form", chat_template=templates))


def test_a_decoder_that_is_not_known_is_refused_by_name(edited: Edit, load: Callable[..., Tokenizer]):
    wordpiece = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(ValueError, match="decoder WordPiece of the tokenizer is not supported"):
        load(edited("llama3_form", tokenizer={"decoder": wordpiece}))
    with pytest.raises(ValueError, match="the tokenizer has no decoder"):
        load(edited("llama3_form", tokenizer={"decoder": None}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{}", r"tokenizer\.json is not a usable tokenizer"),
        ("tokenizer.json", b'{"a', r"tokenizer\.json is not a usable tokenizer"),
        ("tokenizer.json", b"\xff", r"tokenizer\.json is not UTF-8 text"),
        ("tokenizer_config.json", b'{"a', r"tokenizer_config\.json is not JSON"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config\.json must hold a JSON object, found list"),
        ("tokenizer_config.json", b"[" * 100_000, r"tokenizer_config\.json is not JSON"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"5": "x"}}', r"added_tokens_decoder\['5'\] must be"),
    ],
)
def test_broken_files(name: str, content: bytes, message: str, edited: Edit, load: Callable[..., Tokenizer]):
    folder = edited("llama3_form")
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_an_absurdly_large_file_is_not_read(edited: Edit, load: Callable[..., Tokenizer]):
    folder = edited("llama3_form")
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 30)      # sparse
    with pytest.raises(ValueError, match="has 1073741824 bytes; a tokenizer's file has at most"):
        load(folder)


def test_a_folder_without_a_tokenizer(tmp_path: Path, load: Callable[..., Tokenizer]):
    with pytest.raises(ValueError, match=r"has neither tokenizer\.json nor tokenizer\.model$"):
        load(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tekken\.json cannot be read instead"):
        load(tmp_path)


def test_a_broken_sentencepiece_model(tmp_path: Path, load: Callable[..., Tokenizer]):
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")      # a tiktoken file by the same name
    with pytest.raises(ValueError, match=r"tokenizer\.model is not a sentencepiece model"):
        load(tmp_path)


def test_added_tokens_json_beside_a_sentencepiece_model(edited: Edit, load: Callable[..., Tokenizer]):
    folder = edited("sentencepiece_form", added_tokens_decoder=None, additional_special_tokens=None)
    (folder / "added_tokens.json").write_text('{"<|im_end|>": 460}')
    tokenizer = load(folder)
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [460]
    assert 460 not in tokenizer.special_token_ids
    (folder / "added_tokens.json").write_text('{"<|im_end|>": "x"}')
    with pytest.raises(ValueError, match=r"added token '<\|im_end\|>' has id 'x'"):
        load(folder)
