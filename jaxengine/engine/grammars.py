"""The grammars of running sequences: which tokens a step's rows may take, and when a text is complete."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from jaxengine.engine.batch import SampleRow
from jaxengine.structured import CompiledGrammar, GrammarMatcher
from jaxengine.types import Sequence


class SequenceGrammars:
    """One matcher for each sequence that has a grammar; forks of a request have one each. The engine's thread alone.

    A step's masks are made after every earlier id was read, while the device computes the step's forward.
    """

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._matchers: dict[int, GrammarMatcher] = {}     # by seq_id

    def admit(self, seq: Sequence, grammar: CompiledGrammar) -> None:
        self._matchers[seq.seq_id] = grammar.matcher()

    def release(self, seq: Sequence) -> None:
        self._matchers.pop(seq.seq_id, None)

    def get(self, seq: Sequence) -> GrammarMatcher | None:
        return self._matchers.get(seq.seq_id)

    def masks(self, samples: Rows[SampleRow]) -> dict[int, np.ndarray] | None:
        """uint32[ceil(V/32)] by row, for rows with a grammar; None where no row has one."""
        if not self._matchers:
            return None
        masks = {}
        for row, sample in enumerate(samples):
            matcher = self.get(sample.seq)
            if matcher is not None:
                masks[row] = np.empty(self._num_words, np.uint32)
                params = sample.seq.request.params
                may_end = not params.ignore_eos and matcher.num_tokens >= params.min_tokens
                matcher.fill(masks[row], may_end)
        return masks or None
