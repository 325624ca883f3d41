"""A sentencepiece model (tokenizer.model) as a vocabulary, with the tokens that were added to it later."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxengine.tokenizer.folder_files import CONFIG, flag, named_tokens, read_object
from jaxengine.tokenizer.vocabulary import EACH_BYTE, TokenBytes

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_SPACE = "▁"
# ModelProto.normalizer_spec (field 3) with add_dummy_prefix (its field 3) false: messages in protobuf's wire
# format are merged by writing one after the other.
_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"


@dataclass(frozen=True)
class _Added:
    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False


class SentencePieceVocabulary:
    """Text between special tokens goes through sentencepiece as it is.

    Each such stretch gets the model's dummy prefix ("legacy": true, the default of published files without
    the switch), or only the first one ("legacy": false).
    """

    def __init__(self, processor: "SentencePieceProcessor", added: list[_Added], legacy: bool, bos_first: bool) -> None:
        self._processor = processor
        self._added = {token.text: token for token in added}
        self._texts = {token.id: token.text for token in added}
        self._splitter = _splitter(added)
        self._later = processor if legacy else _without_dummy_prefix(processor)
        self._bos_first = bos_first
        self.size = 1 + max([processor.get_piece_size() - 1, *self._texts])
        self.special_ids = frozenset(token.id for token in added if token.special)
        self.byte_errors = EACH_BYTE
        self.strip_leading_space = processor.encode("a") != _without_dummy_prefix(processor).encode("a")
        self.token_bytes = TokenBytes(self._find_bytes)

    def encode(self, text: str) -> list[int]:
        if self._splitter is None:
            return self._processor.encode(text)
        ids: list[int] = []
        for stretch in self._splitter.split(text):
            token = self._added.get(stretch.strip()) or self._added.get(stretch)
            if token is not None and self._splitter.fullmatch(stretch):
                ids.append(token.id)
            elif stretch:
                ids += (self._later if ids else self._processor).encode(stretch)
        return ids

    def id_of(self, token: str) -> int | None:
        if token in self._added:
            return self._added[token].id
        piece_id = self._processor.piece_to_id(token)
        return piece_id if self._processor.id_to_piece(piece_id) == token else None

    def token_of(self, token_id: int) -> str | None:
        if token_id in self._texts:
            return self._texts[token_id]
        return self._processor.id_to_piece(token_id) if token_id < self._processor.get_piece_size() else None

    def affixes(self) -> tuple[list[int], list[int]]:
        """BOS before a text: what sentencepiece models are published with, unless a config says otherwise."""
        return ([self._processor.bos_id()] if self._bos_first else []), []

    def _find_bytes(self, token_id: int) -> bytes:
        if token_id in self._texts:
            return self._texts[token_id].encode()
        if token_id >= self._processor.get_piece_size():
            return b""
        piece = self._processor.id_to_piece(token_id)
        if self._processor.is_byte(token_id):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE, " ").encode()


def read_sentencepiece(folder: Path, config: Mapping[str, Any]) -> SentencePieceVocabulary:
    """tokenizer.model and the added tokens of the files beside it. Raises ValueError naming the file."""
    from sentencepiece import SentencePieceProcessor  # an import that folders with a tokenizer.json do without

    path = folder / "tokenizer.model"
    try:
        processor = SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{path} is not a sentencepiece model: {error}") from error
    added = list({token.id: token for token in _added_tokens(processor, folder, config)}.values())
    legacy = flag(config, "legacy")
    return SentencePieceVocabulary(processor, added, legacy is not False, processor.bos_id() >= 0)


def _added_tokens(processor: "SentencePieceProcessor", folder: Path, config: Mapping[str, Any]) -> Iterator[_Added]:
    """Later entries win: control pieces, added_tokens.json, special tokens by name, added_tokens_decoder."""
    for piece_id in range(processor.get_piece_size()):
        if processor.is_control(piece_id) or processor.is_unknown(piece_id):
            yield _Added(piece_id, processor.id_to_piece(piece_id), special=True)
    listed = read_object(folder / "added_tokens.json")
    special = set(named_tokens(config).values())
    for text, token_id in listed.items():
        yield _Added(_token_id(text, token_id), text, special=text in special)
    for text in special:
        piece_id = processor.piece_to_id(text)
        if processor.id_to_piece(piece_id) == text:
            yield _Added(piece_id, text, special=True)
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
            raise ValueError(f"{CONFIG}: added_tokens_decoder[{key!r}] must be a token with its content")
        flags = {name: bool(entry.get(name, False)) for name in ("special", "lstrip", "rstrip")}
        yield _Added(_token_id(entry["content"], key), entry["content"], **flags)


def _token_id(text: str, value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdigit():
        raise ValueError(f"added token {text!r} has id {value!r}, which is not a whole number of at least 0")
    return int(value)


def _splitter(added: list[_Added]) -> re.Pattern[str] | None:
    """Matches an added token, the longest where several begin, with the white space that it takes along."""
    longest_first = sorted((token for token in added if token.text), key=lambda token: -len(token.text))
    patterns = [
        (r"\s*" if token.lstrip else "") + re.escape(token.text) + (r"\s*" if token.rstrip else "")
        for token in longest_first
    ]
    return re.compile("(" + "|".join(patterns) + ")") if patterns else None


def _without_dummy_prefix(processor: "SentencePieceProcessor") -> "SentencePieceProcessor":
    return type(processor)(model_proto=processor.serialized_model_proto() + _NO_DUMMY_PREFIX)
