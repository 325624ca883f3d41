"""How far one sequence has come in its grammar."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxengine.structured.vocabulary import GrammarVocabulary

# What a sequence's masks may take. The slowest of the allowed schemas takes some 20 ms a mask.
_SECONDS, _SECONDS_PER_TOKEN = 1.0, 0.025
_SLOW = 0.025      # a step's masks that took longer are looked at one by one


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
        self._handle, self._vocabulary, self._wear = handle, vocabulary, wear
        self.ended = False
        self.error: str | None = None
        self.num_tokens = 0
        self._seconds = 0.0

    def spend(self, seconds: float) -> None:
        """Counts what a mask took to make. An ambiguous grammar takes longer with every token, and fails at last."""
        self._seconds += seconds
        if self._seconds > _SECONDS + _SECONDS_PER_TOKEN * self.num_tokens:
            self._fail("the grammar takes too long to follow; a less ambiguous one may not")

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

    def settle(self, mask: np.ndarray, may_end: bool) -> None:
        """After llguidance has filled a mask: what it does not know of. See `fill_masks`."""
        if self._handle.is_error():
            self._fail("the grammar is too complex at this point of the output")
            mask[:] = 0
        elif not may_end or not self._vocabulary.has_eos:
            mask &= ~self._vocabulary.eos_mask
            self.ended = not mask.any()

    def _fail(self, error: str) -> None:
        self.error, self._wear.failed = f"structured_outputs: {error}", True


def fill_masks(rows: Sequence[tuple[GrammarMatcher, bool]]) -> np.ndarray:
    """The tokens that each matcher allows next: uint32[R, ceil(V/32)], bit i of word w for token 32 w + i.

    rows: matchers of one model, with whether the sequence may end here; where it may not, end-of-sequence tokens
    are left out. Where nothing else can follow then, the matcher has `ended` and its row is empty, as it is after
    an error. Works on all rows at once, on llguidance's own threads and without the GIL.
    """
    vocabulary = rows[0][0]._vocabulary
    masks = np.empty((len(rows), vocabulary.num_mask_words), np.uint32)
    handles = [(matcher._handle, row) for row, (matcher, _) in enumerate(rows)]
    start = time.perf_counter()
    vocabulary.executor.unsafe_compute_mask_ptr(handles, masks.ctypes.data, masks.shape[1] * 4, len(rows))
    if (seconds := time.perf_counter() - start) > _SLOW:
        _charge(handles, rows, seconds, masks)
    masks = masks[:, : len(vocabulary.eos_mask)]
    for mask, (matcher, may_end) in zip(masks, rows, strict=True):
        matcher.settle(mask, may_end)
    return masks


def _charge(
    handles: list[Any], rows: Sequence[tuple[GrammarMatcher, bool]], seconds: float, masks: np.ndarray
) -> None:
    """Whose masks took so long: made again one by one where there are several."""
    if len(rows) == 1:
        rows[0][0].spend(seconds)
        return
    for (handle, _), (matcher, _) in zip(handles, rows, strict=True):
        start, again = time.perf_counter(), np.empty_like(masks[0])
        matcher._vocabulary.executor.unsafe_compute_mask_ptr([(handle, 0)], again.ctypes.data, again.nbytes, 1)
        matcher.spend(time.perf_counter() - start)
