"""A tokenizer as llguidance sees it."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from jaxengine.tokenizer import Tokenizer


def load_llguidance() -> ModuleType:
    """The package, which only structured output needs. Raises ValueError where it is not installed."""
    try:
        import llguidance
    except ModuleNotFoundError as error:
        if error.name != "llguidance":
            raise
        raise ValueError(
            "structured_outputs needs llguidance, which is not installed: pip install 'jaxengine[structured]'"
        ) from None
    return llguidance


class GrammarVocabulary:
    """The bytes of every token of a model with `num_rows` rows, and llguidance's tokenizer made from them.

    Special tokens match no text; padding rows match nothing. Any token of `eos_ids` ends the text. A model
    without one gets a stand-in behind its last row, whose bit in a mask nobody reads.
    """

    is_tokenizer_wrapper = True      # what llguidance looks for
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_ids: Iterable[int], num_rows: int) -> None:
        self._tokenizer = tokenizer
        self.num_rows = num_rows
        known = min(tokenizer.vocab_size, num_rows)
        eos_ids = sorted(i for i in eos_ids if i < num_rows)
        self.has_eos = bool(eos_ids)
        self.eos_ids = eos_ids or [num_rows]
        self.special_token_ids = sorted({i for i in tokenizer.special_token_ids if i < known} | set(self.eos_ids))
        self.tokens = [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (num_rows - known)
        if not eos_ids:
            self.tokens.append(b"</s>")
        self._special = frozenset(self.special_token_ids)
        self.eos_token_id = self.eos_ids[0]
        self.eos_mask = self._eos_mask()
        llguidance = load_llguidance()
        self.handle: Any = llguidance.LLTokenizer(self, eos_token=self.eos_ids)
        self.executor: Any = llguidance.LLExecutor()
        self.num_mask_words = -(-len(self.tokens) // 32)      # the stand-in counts here

    def __call__(self, text: str) -> list[int]:
        """How the model itself would spell a text that the grammar forces. Called by llguidance."""
        data = text.encode()
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids if self._spells(ids, data) else self.handle.greedy_tokenize(text)

    def _eos_mask(self) -> np.ndarray:
        """uint32[ceil(V/32)]; the stand-in's bit too, where it lies in the last word."""
        mask = np.zeros(-(-self.num_rows // 32), np.uint32)
        for token_id in self.eos_ids:
            if token_id // 32 < len(mask):
                mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return mask

    def _spells(self, ids: list[int], data: bytes) -> bool:
        """False where encoding added a space of its own, or took the text for a special token's."""
        if any(i in self._special or i >= self.num_rows for i in ids):
            return False
        return b"".join([self.tokens[i] for i in ids]) == data
