"""How far one sequence has come in its grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxengine.structured.vocabulary import GrammarVocabulary


@dataclass
class Wear:
    """Tokens that a grammar's matchers have consumed between them, and whether one of them failed."""

    num_tokens: int = 0
    failed: bool = False


class GrammarMatcher:
    """Follows one sequence's tokens through its grammar and says which may come next.

    ended: the text is complete and nothing can follow it. error: why the grammar cannot be followed further,
    None while it can. num_tokens: consumed so far. One thread at a time.
    """

    def __init__(self, handle: Any, vocabulary: GrammarVocabulary, wear: Wear) -> None:
        self._handle, self._wear = handle, wear
        self._eos, self._has_eos = vocabulary.eos_mask, vocabulary.has_eos
        self.ended = False
        self.error: str | None = None
        self.num_tokens = 0

    def consume(self, token_id: int) -> None:
        """Takes the sequence's next token, which the last mask allowed."""
        self.num_tokens += 1
        self._wear.num_tokens += 1
        if not self._handle.consume_token(token_id):
            self._fail("the grammar cannot take the token that followed")
            return
        self.ended = self._handle.is_stopped()

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens, as for drafts that were not accepted."""
        if num_tokens and not self._handle.rollback(num_tokens):
            self._fail(f"{num_tokens} tokens cannot be taken back")
            return
        self.num_tokens -= num_tokens
        self.ended = self._handle.is_stopped()

    def fill(self, mask: np.ndarray, may_end: bool = True) -> None:
        """Writes the allowed tokens to mask, uint32[ceil(V/32)]: bit i of word w for token 32 w + i.

        may_end: False leaves the end-of-sequence tokens out. Where nothing else can follow, the text has ended
        and the mask is empty, as it is after an error.
        """
        words = np.frombuffer(self._handle.compute_bitmask(), np.uint32)[: len(mask)]
        if self._handle.is_error():
            self._fail("the grammar is too complex at this point of the output")
            mask[:] = 0
        elif may_end and self._has_eos:
            mask[:] = words
        else:
            np.bitwise_and(words, ~self._eos, out=mask)
            self.ended = not mask.any()

    def _fail(self, error: str) -> None:
        self.error, self._wear.failed = f"structured_outputs: {error}", True
