"""A `tokenizers.Tokenizer` (Hugging Face's library) as a vocabulary."""

import json
from typing import Any

from tokenizers import Tokenizer

from jaxengine.tokenizer.vocabulary import EACH_BYTE, TokenBytes

_SPACE = "▁"
_TO_SPACE = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
_STRIP_ONE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: a byte that prints stands for itself, the others are
    numbered from U+0100 on (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(byte): byte for byte in printable}
    return stand_ins | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


class TokenizersVocabulary:
    """Text is split, merged and spelled by the `tokenizers` library; ids become bytes here.

    Known decoders are byte-level ones (GPT-2, Llama 3, Qwen) and sentencepiece-like ones (Llama 2, Gemma).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError for a decoder whose ids cannot be turned into bytes one by one."""
        tokenizer.no_truncation()      # some published files cut or pad every text
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        byte_level, self.strip_leading_space = _decoder_kind(tokenizer)
        self.byte_errors = "replace" if byte_level else EACH_BYTE
        self.token_bytes = TokenBytes(
            self._byte_level_bytes if byte_level else self._spaced_bytes
        )
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.size = 1 + max([tokenizer.get_vocab_size() - 1, *added])

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def token_of(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)

    def to_json(self) -> str:
        """The contents of a tokenizer.json."""
        return self._tokenizer.to_str()

    def affixes(self) -> tuple[list[int], list[int]]:
        """The ids that the file's own post-processor puts before and after a text."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise ValueError("the tokenizer's post_processor changes a text's own ids, which is not supported")

    def _byte_level_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""
        data = [_BYTE_OF.get(char) for char in token]
        # Added tokens may use characters outside the alphabet: they are plain text.
        return token.encode() if None in data else bytes(byte for byte in data if byte is not None)

    def _spaced_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""
        return byte_of_piece(token) or token.replace(_SPACE, " ").encode()


def byte_of_piece(piece: str) -> bytes | None:
    """The byte that a byte-fallback piece like "<0x0A>" stands for; None for other pieces."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            return None
    return None


def _decoder_kind(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """(byte-level?, is one leading space stripped?) of the tokenizer's decoder."""
    if tokenizer.decoder is None:
        raise ValueError("the tokenizer has no decoder; supported are ByteLevel and sentencepiece-like ones")
    decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return True, False
    spaced = [_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if steps in (spaced, [*spaced, _STRIP_ONE]):
        return False, len(steps) > len(spaced)
    raise ValueError(
        f"decoder {' + '.join(names)} of the tokenizer is not supported; known are ByteLevel and "
        "Replace(▁) + ByteFallback + Fuse (+ Strip)"
    )
