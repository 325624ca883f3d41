"""The tokenizer files of a Hugging Face folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from jaxengine.tokenizer.folder_files import (
    CONFIG,
    flag,
    named_tokens,
    read_chat_templates,
    read_text,
    read_tokenizer_config,
)
from jaxengine.tokenizer.sentencepiece_vocabulary import read_sentencepiece
from jaxengine.tokenizer.source import TokenizerSource
from jaxengine.tokenizer.tokenizers_vocabulary import TokenizersVocabulary
from jaxengine.tokenizer.vocabulary import Vocabulary

_FAST_FILE, _SENTENCEPIECE_FILE = "tokenizer.json", "tokenizer.model"
_OTHER_FILES = ("vocab.json", "tekken.json", "tiktoken.model", "vocab.txt", "spiece.model")
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


def huggingface_source(folder: Path) -> TokenizerSource:
    """Reads tokenizer.json, or else a sentencepiece tokenizer.model, and what lies beside them.

    Raises ValueError naming the file that is missing or wrong.
    """
    config = read_tokenizer_config(folder)
    if (folder / _FAST_FILE).is_file():
        vocabulary = _read_fast(folder / _FAST_FILE, config)
        prefix_ids, suffix_ids = vocabulary.affixes()
    elif (folder / _SENTENCEPIECE_FILE).is_file():
        vocabulary = read_sentencepiece(folder, config)
        prefix_ids, suffix_ids = vocabulary.affixes()
    else:
        raise ValueError(_nothing_found(folder))
    named = named_tokens(config)
    bos, eos = (_named_id(vocabulary, named, name) for name in ("bos_token", "eos_token"))
    return TokenizerSource(
        vocabulary=vocabulary,
        prefix_ids=_affix(config, "add_bos_token", bos, prefix_ids),
        suffix_ids=_affix(config, "add_eos_token", eos, suffix_ids),
        bos_token_id=bos,
        eos_ids=frozenset() if eos is None else frozenset([eos]),
        named_tokens=named,
        chat_templates=read_chat_templates(folder, config),
    )


def _read_fast(path: Path, config: Mapping[str, Any]) -> TokenizersVocabulary:
    try:
        tokenizer = Tokenizer.from_str(read_text(path))
    except ValueError:
        raise
    except Exception as error:      # the library raises nothing narrower
        raise ValueError(f"{path} is not a usable tokenizer: {error}") from error
    tokenizer.add_tokens(list(_missing_tokens(tokenizer, config)))
    return TokenizersVocabulary(tokenizer)


def _missing_tokens(tokenizer: Tokenizer, config: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Added tokens that only tokenizer_config.json declares, or declares otherwise. None gets a new id:
    the model would have no row for it."""
    present = tokenizer.get_added_tokens_decoder()
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str) or not str(key).isdigit():
            raise ValueError(f"{CONFIG}: added_tokens_decoder[{key!r}] must be a token with its content")
        token = AddedToken(entry["content"], **{name: bool(entry.get(name, False)) for name in _FLAGS})
        if repr(present.get(int(key))) != repr(token) and tokenizer.token_to_id(token.content) == int(key):
            yield token
    spelled = {token.content for token in present.values()}
    for text in named_tokens(config).values():
        if text not in spelled and tokenizer.token_to_id(text) is not None:
            yield AddedToken(text, normalized=False, special=True)


def _named_id(vocabulary: Vocabulary, named: Mapping[str, str], name: str) -> int | None:
    return vocabulary.id_of(named[name]) if name in named else None


def _affix(config: Mapping[str, Any], name: str, token_id: int | None, own: list[int]) -> list[int]:
    """What surrounds a text: the config's switch, where it has one, overrules the tokenizer's own rule."""
    switch = flag(config, name)
    if switch is None:
        return own
    if not switch:
        return [i for i in own if i != token_id]
    if token_id is None:
        raise ValueError(f"{CONFIG}: {name} is true, but {name.removeprefix('add_')} is not in the vocabulary")
    return own if token_id in own else [token_id]


def _nothing_found(folder: Path) -> str:
    others = [name for name in _OTHER_FILES if (folder / name).is_file()]
    hint = f"; {', '.join(others)} cannot be read instead" if others else ""
    return f"{folder} has neither {_FAST_FILE} nor {_SENTENCEPIECE_FILE}{hint}"
