"""The vocabulary inside a GGUF file, from its raw metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from jaxengine.tokenizer.pretokenizers import find_pre_tokenizer
from jaxengine.tokenizer.score_merges import merges_from_scores
from jaxengine.tokenizer.source import DEFAULT_TEMPLATE, TokenizerSource
from jaxengine.tokenizer.tokenizers_vocabulary import TokenizersVocabulary

PREFIX = "tokenizer.ggml."
MODEL_KEY = PREFIX + "model"
_TEMPLATE_KEY = "tokenizer.chat_template"
# Token types of the format.
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ENDS = ("eos", "eot", "eom")


def gguf_source(metadata: Mapping[str, Any]) -> TokenizerSource:
    """Builds the vocabulary; raises ValueError naming the metadata key that is missing, wrong or unknown."""
    model = metadata.get(MODEL_KEY)
    if model == "gpt2":
        tokenizer, add_bos = _byte_level(metadata)
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(metadata)
    else:
        raise ValueError(
            f"{MODEL_KEY}={model!r} is not supported; known: 'gpt2' (byte-level BPE), 'llama' (sentencepiece)"
        )
    vocabulary = TokenizersVocabulary(tokenizer)
    bos, eos = _id(metadata, "bos"), _id(metadata, "eos")
    tokens = metadata[PREFIX + "tokens"]
    named = {name: _id(metadata, key) for name, key in _NAMED.items()}
    return TokenizerSource(
        vocabulary=vocabulary,
        prefix_ids=_affix(metadata, "bos", bos, add_bos),
        suffix_ids=_affix(metadata, "eos", eos, False),
        bos_token_id=bos,
        eos_ids=frozenset(i for key in _ENDS if (i := _id(metadata, key)) is not None),
        named_tokens={name: tokens[i] for name, i in named.items() if i is not None},
        chat_templates=_templates(metadata),
    )


def _byte_level(metadata: Mapping[str, Any]) -> tuple[Tokenizer, bool]:
    rule = find_pre_tokenizer(metadata.get(PREFIX + "pre", "default"))
    tokens, types = _tokens(metadata), _types(metadata)
    try:
        merges = [(left, right) for left, right in (merge.split(" ") for merge in _required(metadata, "merges"))]
    except (ValueError, AttributeError):
        raise ValueError(f"{PREFIX}merges must hold pairs of tokens with a space between them") from None
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(_bpe(vocab, merges, ignore_merges=rule.ignore_merges))
    if (normalizer := rule.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added_tokens(tokens, types))
    return tokenizer, rule.add_bos


def _sentencepiece(metadata: Mapping[str, Any]) -> tuple[Tokenizer, bool]:
    for key in ("remove_extra_whitespaces", "precompiled_charsmap"):
        value = metadata.get(PREFIX + key)
        if value is not None and (len(value) if hasattr(value, "__len__") else value):
            raise ValueError(f"{PREFIX}{key} asks for a text normalisation that is not supported for GGUF files")
    types = _types(metadata)
    spelled = [
        token.replace(" ", "▁") if kind == _USER_DEFINED else token
        for token, kind in zip(_tokens(metadata), types, strict=True)
    ]
    scores = list(_required(metadata, "scores", len(types)))
    # User-defined tokens are merged before all others, whatever score the file gives them.
    scores = [0.0 if kind == _USER_DEFINED else score for score, kind in zip(scores, types, strict=True)]
    vocab = {token: i for i, token in enumerate(spelled)}
    tokenizer = Tokenizer(
        _bpe(vocab, merges_from_scores(spelled, scores), unk_token=_unknown_token(metadata, spelled, types),
             fuse_unk=True, byte_fallback=_BYTE in types)
    )
    add_prefix = _flag(metadata, "add_space_prefix", True)
    to_mark = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), to_mark]) if add_prefix else to_mark
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_prefix else steps)
    tokenizer.add_tokens(_added_tokens(spelled, types))
    return tokenizer, True


def _bpe(vocab: dict[str, int], merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab, merges, **options)
    except Exception as error:      # the library raises nothing narrower
        raise ValueError(f"the GGUF file's vocabulary is inconsistent: {error}") from error


def _added_tokens(spelled: Sequence[str], types: Sequence[int]) -> list[AddedToken]:
    """Tokens that are found in a text before anything is merged. Control tokens are special: not shown."""
    return [
        AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
        for token, kind in zip(spelled, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN) and token
    ]


def _unknown_token(metadata: Mapping[str, Any], spelled: Sequence[str], types: Sequence[int]) -> str | None:
    unknown = _id(metadata, "unknown")
    if unknown is None and _UNKNOWN in types:
        unknown = types.index(_UNKNOWN)
    return None if unknown is None else spelled[unknown]


def _required(metadata: Mapping[str, Any], name: str, length: int | None = None) -> Sequence[Any]:
    values = metadata.get(PREFIX + name)
    if values is None or isinstance(values, str) or not hasattr(values, "__len__") or len(values) == 0:
        raise ValueError(f"{PREFIX}{name} must be a non-empty list; this GGUF file has no usable vocabulary")
    if length is not None and len(values) != length:
        raise ValueError(f"{PREFIX}{name} has {len(values)} entries for {length} tokens")
    return values


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = list(_required(metadata, "tokens"))
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"{PREFIX}tokens must hold strings only")
    return tokens


def _types(metadata: Mapping[str, Any]) -> list[int]:
    length = len(_required(metadata, "tokens"))
    return [int(kind) for kind in _required(metadata, "token_type", length)]


def _id(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(f"{PREFIX}{name}_token_id")
    if value is None:
        return None
    if not 0 <= int(value) < len(metadata[PREFIX + "tokens"]):
        raise ValueError(f"{PREFIX}{name}_token_id={value} is outside the file's vocabulary")
    return int(value)


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    return bool(metadata.get(PREFIX + name, default))


def _affix(metadata: Mapping[str, Any], name: str, token_id: int | None, default: bool) -> list[int]:
    return [token_id] if token_id is not None and _flag(metadata, f"add_{name}_token", default) else []


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    named = {
        key.removeprefix(_TEMPLATE_KEY + "."): value
        for key, value in metadata.items()
        if key.startswith(_TEMPLATE_KEY + ".") and isinstance(value, str)
    }
    default = metadata.get(_TEMPLATE_KEY)
    return {**named, DEFAULT_TEMPLATE: default} if isinstance(default, str) else named
