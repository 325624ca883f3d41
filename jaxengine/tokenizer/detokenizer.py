"""Token ids to text while they arrive: O(1) a token, and never half a character."""

import codecs
from collections.abc import Iterable, Sequence

from jaxengine.tokenizer.vocabulary import REPLACEMENT, Vocabulary

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")
_MAX_UNFINISHED = 3      # a UTF-8 character has at most 4 bytes


class IncrementalDetokenizer:
    """Turns the ids that follow a prompt into text.

    The pieces that `push` and `finish` return add up to what the output adds to the prompt's text: the decoded
    prompt and output together, less the decoded prompt. So a first word keeps the space before it, and a
    character that begins in the prompt's last bytes is given whole.
    """

    def __init__(
        self, vocabulary: Vocabulary, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._bytes, self._texts = vocabulary.token_bytes, vocabulary.token_bytes.texts
        self._skipped = vocabulary.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = _Utf8Decoder(vocabulary.byte_errors)
        self._decoder.decode(self._last_bytes(prompt_token_ids))
        unfinished = self._decoder.getstate()[0]
        # What the prompt already shows for its unfinished character.
        self._shown = len(unfinished.decode("utf-8", vocabulary.byte_errors))
        self._strip = vocabulary.strip_leading_space and not self._has_text(prompt_token_ids)
        self._at_start = self._strip or self._shown > 0
        self._unfinished = bool(unfinished)      # the decoder holds a part of a character

    def push(self, token_id: int) -> str:
        """The text that this id makes readable; an unfinished character is held back."""
        if token_id in self._skipped:
            return ""
        text = None if self._unfinished else self._texts[token_id]
        if text is None:
            text = self._decoder.decode(self._bytes[token_id])
            self._unfinished = bool(self._decoder.getstate()[0])
        return self._after_prompt(text) if self._at_start else text

    def finish(self) -> str:
        """What was held back: an unfinished character becomes U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._unfinished = False
        return self._after_prompt(text) if self._at_start else text

    def _after_prompt(self, text: str) -> str:
        """Takes away what belongs to the prompt or to the vocabulary's dummy prefix."""
        while self._shown and text.startswith(REPLACEMENT):
            text = text[1:]
            self._shown -= 1
        if not text:
            return text
        self._at_start = False
        return text.removeprefix(" ") if self._strip else text

    def _has_text(self, token_ids: Iterable[int]) -> bool:
        return any(self._bytes[i] for i in token_ids if i not in self._skipped)

    def _last_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Enough of the end of the prompt's bytes to hold an unfinished character."""
        data = b""
        for token_id in reversed(token_ids):
            if token_id not in self._skipped:
                data = self._bytes[token_id] + data
                if len(data) >= _MAX_UNFINISHED:
                    break
        return data[-_MAX_UNFINISHED:]
