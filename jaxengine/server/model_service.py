"""The loaded model as the endpoints see it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from jaxengine.engine.async_engine import AsyncEngine
from jaxengine.engine.load import LoadedModel
from jaxengine.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelService:
    """An engine at work, its tokenizer and what the checkpoint recommends.

    window: tokens of prompt and output together: the model's context, or the KV pool where that is smaller.
    max_prompt_chars: no text of more characters can fit into the window.
    """

    engine: AsyncEngine
    tokenizer: Tokenizer
    vocab_size: int
    window: int
    max_prompt_chars: int
    sampling_defaults: dict[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def start(cls, loaded: LoadedModel) -> ModelService:
        engine, tokenizer = loaded.engine, loaded.engine.tokenizer
        assert tokenizer is not None
        # The last token is returned but never computed, so it needs no place in the pool.
        window = min(engine.max_model_len, engine.blocks.capacity + 1)
        longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
        return cls(
            AsyncEngine(engine), tokenizer, engine.runner.cfg.vocab_size, window, window * max(longest, 1),
            dict(loaded.sampling_defaults),
        )
