"""Small tokenizers in the forms that published models use, against transformers and sentencepiece themselves.

golden/tokenizers/make.py trained them and wrote their answers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxengine.tokenizer import Tokenizer
from jaxengine.tokenizer.pretokenizers import PRE_TOKENIZERS

FORMS = ("llama3_form", "qwen_form", "sentencepiece_form")


@pytest.fixture(scope="module")
def folder(golden: Path) -> Path:
    return golden / "tokenizers"


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest, folder: Path, load: Callable[..., Tokenizer]) -> tuple[Tokenizer, dict]:
    answers = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return load(folder / request.param), answers[request.param]


def test_ids_and_texts(form: tuple[Tokenizer, dict]):
    tokenizer, answers = form
    for case in answers["texts"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["bare"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["decoded"], case["text"]
        if "spelled" in case:
            assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["spelled"], case["text"]


def test_chats(form: tuple[Tokenizer, dict]):
    tokenizer, answers = form
    for case in answers.get("chats", []):
        options = {key: value for key, value in case.items() if key not in ("messages", "text")}
        assert tokenizer.apply_chat_template(case["messages"], **options) == case["text"]
        assert tokenizer.encode_chat(case["messages"], **options) == tokenizer.encode(case["text"], False)


@pytest.mark.parametrize("legacy", [True, False])
def test_tokens_added_to_a_sentencepiece_model(
    legacy: bool, folder: Path, load: Callable[..., Tokenizer], tmp_path: Path
):
    """Each stretch between them gets its own dummy prefix, or only the first one when legacy is off."""
    import sentencepiece

    model = folder / "sentencepiece_form" / "tokenizer.model"
    config = json.loads((folder / "sentencepiece_form" / "tokenizer_config.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.model").write_bytes(model.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"legacy": legacy}), encoding="utf-8")
    tokenizer = load(tmp_path)
    native = sentencepiece.SentencePieceProcessor(model_file=str(model))
    stretch = native.encode("river")
    after = stretch if legacy else native.encode("\nriver")[native.encode("\n").index(native.piece_to_id("\n")) + 1 :]
    assert (after == stretch) is legacy
    assert tokenizer.encode("river<|im_end|>river<think></s>") == [1, *stretch, 461, *after, 462, 2]
    assert tokenizer.encode("<|im_end|>river", False) == [461, *after]
    assert tokenizer.decode([1, *stretch, 461, 462]) == "river<think>"
    assert tokenizer.decode([*stretch, 461], skip_special_tokens=False) == "river<|im_end|>"
    assert tokenizer.vocab_size == 463


def test_gguf_rules_cut_words_as_the_published_files(folder: Path):
    reference = json.loads((folder / "pretokenizers.json").read_text(encoding="utf-8"))
    assert len(reference["words"]) == 3
    for name, words in reference["words"].items():
        rule = PRE_TOKENIZERS[name]
        normalizer, pre_tokenizer = rule.normalizer(), rule.pre_tokenizer()
        for text, expected in zip(reference["texts"], words, strict=True):
            text = normalizer.normalize_str(text) if normalizer else text
            assert [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] == expected, (name, text)


@pytest.mark.parametrize("name", ["llama3_form", "qwen_form"])
def test_the_same_vocabulary_from_gguf_gives_the_same_ids(name: str, folder: Path, load: Callable[..., Tokenizer]):
    """The whole path of a GGUF vocabulary, against the tokenizer.json that it would be made from."""
    published = json.loads((folder / name / "tokenizer.json").read_text(encoding="utf-8"))
    model, added = published["model"], published["added_tokens"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    types = [1] * len(tokens) + [3 if token["special"] else 4 for token in added]
    entries = {
        "model": "gpt2", "pre": {"llama3_form": "llama-bpe", "qwen_form": "qwen2"}[name],
        "tokens": tokens + [token["content"] for token in added], "token_type": types,
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
    } | ({"bos_token_id": len(tokens)} if name == "llama3_form" else {})
    tokenizer = load({f"tokenizer.ggml.{key}": value for key, value in entries.items()})
    answers = json.loads((folder / "cases.json").read_text(encoding="utf-8"))[name]
    for case in answers["texts"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["decoded"], case["text"]
