"""A stand-in for the device: a runner that answers at once with random ids, so that only host time is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.ledger import CompileLedger, Key
from jaxengine.engine.memory import MemoryPlan
from jaxengine.engine.plan_buckets import plan_buckets
from jaxengine.engine.sampler import SampleResult
from jaxengine.tokenizer import Tokenizer

# Ids that are drawn: a text uses few of a vocabulary's tokens over and over, and none of its special ones.
WORDS = (1000, 5000)


@dataclass(frozen=True)
class _Config:
    vocab_size: int


class StandInRunner:
    """Has what Engine asks of a Runner. Every executable counts as compiled."""

    def __init__(self, config: EngineConfig, vocab_size: int, num_blocks: int, max_model_len: int) -> None:
        self.cfg, self.config, self.state = _Config(vocab_size), config, ()
        size = config.cache.block_size
        self.memory = MemoryPlan(0, 0, size, num_blocks, "none", "a stand-in")
        self.buckets = plan_buckets(config, -(-max_model_len // size))
        self.num_shards = 1
        self.ledger = CompileLedger()
        for kind in ("decode", "mixed", "greedy", "sample"):
            for bucket in getattr(self.buckets, kind):
                self.ledger.plan(Key(kind, bucket), "", lambda: None)
                self.ledger.entries[Key(kind, bucket)].compiled = True
        self._random = np.random.default_rng(0)

    def forward(self, kind: str, bucket: int, packed: np.ndarray) -> tuple[Any, Any]:
        return None, None

    def greedy(self, rows: Any, slots: np.ndarray) -> SampleResult:
        return self._draw(len(slots))

    def sample(self, rows: Any, packed: Any) -> SampleResult:
        return self._draw(len(packed.rows))

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Nothing to copy."""

    def reset_slot(self, slot: int, token_ids: list[int], num_prompt: int) -> None:
        """Nothing to reset."""

    def close(self) -> None:
        self.ledger.close()

    def _draw(self, count: int) -> Any:
        low, high = min(WORDS, (self.cfg.vocab_size // 2, self.cfg.vocab_size))
        ids = self._random.integers(low, high, count, dtype=np.int32)
        return SampleResult(ids, np.ones(count, bool), None)      # type: ignore[arg-type]


def stand_in_engine(config: EngineConfig, vocab_size: int, max_model_len: int, tokenizer: Tokenizer | None) -> Engine:
    """An engine without a device; its pool holds max_num_seqs sequences of max_model_len tokens."""
    blocks = config.scheduler.max_num_seqs * -(-max_model_len // config.cache.block_size) + 1
    runner = StandInRunner(config, vocab_size, blocks, max_model_len)
    return Engine(runner, config, max_model_len, tokenizer)  # type: ignore[arg-type]
