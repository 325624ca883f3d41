"""The grammars of running sequences: which tokens a step's rows may take, and when a text is complete."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np

from jaxengine.engine.batch import SampleRow
from jaxengine.structured import CompiledGrammar, GrammarMatcher, fill_masks
from jaxengine.types import Sequence


class SequenceGrammars:
    """One matcher for each sequence that has a grammar; forks of a request have one each. The engine's thread alone.

    A step's masks are made after every earlier id was read, while the device computes the step's forward.
    """

    def __init__(self) -> None:
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
        rows = [row for row, sample in enumerate(samples) if sample.seq.seq_id in self._matchers]
        if not rows:
            return None
        return dict(zip(rows, fill_masks([self._next(samples[row].seq) for row in rows]), strict=True))

    def _next(self, seq: Sequence) -> tuple[GrammarMatcher, bool]:
        """A sequence's matcher, and whether it may end here."""
        matcher, params = self._matchers[seq.seq_id], seq.request.params
        return matcher, not params.ignore_eos and matcher.num_tokens >= params.min_tokens
