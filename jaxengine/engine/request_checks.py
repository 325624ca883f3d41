"""What can be said of a request before it is queued. Reads only what never changes, so any thread may ask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxengine.config import SchedulerConfig
from jaxengine.engine.sampling_batch import validate_bans, validate_ids
from jaxengine.scheduler.limits import max_num_tokens
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import Request, SamplingParams


@dataclass(frozen=True)
class RequestChecks:
    """The bounds of one engine. capacity: tokens that fit into the KV pool."""

    config: SchedulerConfig
    max_model_len: int
    capacity: int
    vocab_size: int
    tokenizer: Tokenizer | None
    eos_token_ids: frozenset[int]

    def check(self, request: Request) -> list[list[int]]:
        """Raises ValueError for a request that can never be served; returns its bad words as token ids."""
        params = request.params
        _check_ids(request.prompt_token_ids, self.vocab_size)
        validate_ids(params, self.vocab_size)
        if params.stop_strings and self.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs a tokenizer, and this engine has none; use stop_token_ids")
        bad_words = self._bad_word_ids(params)
        validate_bans(params, self.stop_ids(params), bad_words)
        max_num_tokens(request, self.config, self.max_model_len, self.capacity)
        return bad_words

    def stop_ids(self, params: SamplingParams) -> set[int]:
        """What min_tokens holds back: every id that may end a sequence, EOS even where it is ignored, as in vLLM."""
        return {*(params.stop_token_ids or ()), *self.eos_token_ids}

    def _bad_word_ids(self, params: SamplingParams) -> list[list[int]]:
        """Each bad word as ids, at the start of a text and after a space."""
        if not params.bad_words:
            return []
        if self.tokenizer is None:
            raise ValueError(f"bad_words={params.bad_words!r} needs a tokenizer, and this engine has none")
        spellings = [prefix + word.lstrip() for word in params.bad_words for prefix in ("", " ")]
        ids = [tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in spellings]
        return [list(word) for word in dict.fromkeys(ids) if word]


def _check_ids(token_ids: list[int], vocab_size: int) -> None:
    """A gather on the device would clamp a wrong id instead of failing."""
    if not token_ids:
        raise ValueError("prompt_token_ids=[]: a prompt needs at least one token")
    for t in token_ids:
        if isinstance(t, bool) or not isinstance(t, (int, np.integer)) or not 0 <= t < vocab_size:
            raise ValueError(f"prompt_token_ids: {t!r} is not a token id in [0, {vocab_size})")
