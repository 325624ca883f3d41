"""The fixed workloads: the same token ids for every engine that is compared, greedy, to a fixed length."""

from __future__ import annotations

import random
from dataclasses import dataclass

from jaxengine.types import SamplingParams

# Ids of ordinary words in SmolLM2's vocabulary, clear of its special tokens. Smaller vocabularies use what they have.
LOW, HIGH = 1000, 40000


@dataclass(frozen=True)
class Prompt:
    """One request: its prompt's ids, and how many tokens it generates."""

    token_ids: list[int]
    output_len: int


def mixed(n: int, vocab_size: int = HIGH) -> list[Prompt]:
    """n requests at once: prompts of 16 to 128 tokens, outputs of 16 to 64. Peers' scripts draw the same ids."""
    r = random.Random(1)
    low, high = id_range(vocab_size)
    return [
        Prompt([r.randrange(low, high) for _ in range(r.randint(16, 128))], r.randint(16, 64)) for _ in range(n)
    ]


def long_tailed(n: int, vocab_size: int) -> list[Prompt]:
    """n requests whose outputs differ eightfold (16 to 128 tokens), so a batch that waits for its longest idles."""
    r = random.Random(2)
    return [Prompt(random_ids(r, r.randint(16, 128), vocab_size), r.randint(16, 128)) for _ in range(n)]


def random_ids(r: random.Random, count: int, vocab_size: int) -> list[int]:
    low, high = id_range(vocab_size)
    return [r.randrange(low, high) for _ in range(count)]


def id_range(vocab_size: int) -> tuple[int, int]:
    high = min(HIGH, vocab_size)
    return min(LOW, high // 2), high


def greedy(max_tokens: int) -> SamplingParams:
    """Exactly `max_tokens` tokens, as ids alone."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
