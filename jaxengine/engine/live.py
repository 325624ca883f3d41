"""Who is in the engine: its requests, their sequences, and what a step has to do for each of them."""

from __future__ import annotations

from jaxengine.engine.grammars import SequenceGrammars
from jaxengine.engine.output import RequestState, SequenceOutput
from jaxengine.engine.sampling_batch import needs_full
from jaxengine.structured import CompiledGrammar
from jaxengine.types import Sequence


class Live:
    """Everything by id, from a request's admission to its end.

    The sets hold sequences that want more than the likeliest ids. Most steps have none, and then no row is
    looked at.
    """

    def __init__(self) -> None:
        self.requests: dict[str, RequestState] = {}
        self.states: dict[int, RequestState] = {}          # by seq_id, as all that follow
        self.outputs: dict[int, SequenceOutput] = {}
        self.grammars = SequenceGrammars()
        self.scored: set[int] = set()                      # prompt log-probabilities
        self.with_logprobs: set[int] = set()
        self.full: set[int] = set()                        # the full sampler, at least until min_tokens are out

    def sequence(self, seq_id: int) -> Sequence:
        return self.outputs[seq_id].seq

    def admit(self, state: RequestState, grammar: CompiledGrammar | None) -> None:
        self.requests[state.request.request_id] = state
        params = state.request.params
        for out in state.outputs:
            seq_id = out.seq.seq_id
            self.outputs[seq_id], self.states[seq_id] = out, state
            if params.prompt_logprobs is not None:
                self.scored.add(seq_id)
            if params.logprobs is not None:
                self.with_logprobs.add(seq_id)
            if needs_full(params):
                self.full.add(seq_id)
            if grammar is not None:
                self.grammars.admit(out.seq, grammar)

    def remove(self, state: RequestState) -> None:
        del self.requests[state.request.request_id]
        for out in state.outputs:
            seq_id = out.seq.seq_id
            del self.outputs[seq_id], self.states[seq_id]
            self.grammars.release(out.seq)
            for wishes in (self.scored, self.with_logprobs, self.full):
                wishes.discard(seq_id)
