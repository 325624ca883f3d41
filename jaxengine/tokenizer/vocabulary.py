"""What a tokenizer back end is: text to ids and ids to bytes. BOS, templates and streaming are built on top."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Protocol

REPLACEMENT = "\ufffd"
EACH_BYTE = "jaxengine.replace_each_byte"


class Vocabulary(Protocol):
    """A back end. Texts are split at the spelling of special tokens, which become those tokens' ids.

    size: highest id + 1. token_bytes: the bytes of every id's text, b"" for an id that the vocabulary does not
    know (models pad their rows). special_ids: what `skip_special_tokens` leaves out. byte_errors: codec error
    handler for bytes that are not UTF-8. strip_leading_space: a text's first space is not its own but the
    dummy prefix that encoding put there.
    """

    @property
    def size(self) -> int: ...

    @property
    def token_bytes(self) -> TokenBytes: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def byte_errors(self) -> str: ...

    @property
    def strip_leading_space(self) -> bool: ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS or EOS."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token spelled as the vocabulary spells it."""
        ...

    def token_of(self, token_id: int) -> str | None:
        """How the vocabulary spells a token."""
        ...


class TokenBytes(dict[int, bytes]):
    """Bytes per token id, filled on first use: a stream touches few of 260,000 tokens.

    `texts` has the same as text, None for a token that is not whole characters by itself.
    """

    def __init__(self, find: Callable[[int], bytes]) -> None:
        super().__init__()
        self._find = find
        self.texts = _TokenTexts(self)

    def __missing__(self, token_id: int) -> bytes:
        data = self[token_id] = self._find(token_id)
        return data


class _TokenTexts(dict[int, str | None]):
    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self._bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._bytes[token_id].decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """One replacement character a byte, as sentencepiece shows bytes that are not UTF-8."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _replace_each_byte)
