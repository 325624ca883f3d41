"""From a step's results to its requests: ids to sequences, text to outputs, ended sequences out of the scheduler."""

from __future__ import annotations

import time

from jaxengine.engine.launch import Flight, Scores
from jaxengine.engine.live import Live
from jaxengine.engine.output import RequestState
from jaxengine.engine.results import HostLogprobs, HostResult
from jaxengine.engine.stats import TokensRead
from jaxengine.scheduler import Scheduler
from jaxengine.structured import GrammarMatcher
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import FinishReason, Sequence

NOT_FINITE = "a logit of the model is not finite"
NONE_ALLOWED = (
    "no token is allowed: allowed_token_ids, bad_words, min_tokens, logit_bias and the grammar together leave none"
)


class Collector:
    """Reads flights. score_size: prompt positions that one scoring call holds for a shard."""

    def __init__(self, scheduler: Scheduler, live: Live, tokenizer: Tokenizer | None, score_size: int) -> None:
        self.scheduler, self.live, self.tokenizer, self._score_size = scheduler, live, tokenizer, score_size
        self._last_read = 0.0      # on time.perf_counter's clock

    def collect(self, flight: Flight) -> tuple[list[RequestState], TokensRead]:
        """Waits for the step; returns the requests that it moved on, in the order of its rows."""
        result = None
        if flight.result is not None:
            result = HostResult.read(flight.result, flight.wants_logprobs, flight.places)
        waited = time.perf_counter()
        read = TokensRead(time.monotonic(), waited)
        flight.stats.step_s = waited - max(self._last_read, flight.stats.started)
        self._last_read = waited
        touched: dict[RequestState, None] = {}      # a set in the order of the rows
        for scores in flight.scores:
            self._add_prompt_logprobs(scores)
        for row in flight.plan.rows:
            if not row.sample and row.seq_id in self.live.outputs:
                self._take_unsampled(self.live.sequence(row.seq_id), row.start + row.num_tokens, touched)
        for i, sample in enumerate(flight.samples):
            if sample.seq.is_finished:
                continue      # aborted, or ended by the step before
            state = self.live.states[sample.seq.seq_id]
            touched[state] = None
            assert result is not None
            self._take(sample.seq, state, result, i, read)
        return list(touched), read

    def _take(self, seq: Sequence, state: RequestState, result: HostResult, i: int, read: TokensRead) -> None:
        grammar = self.live.grammars.get(seq)
        if grammar is not None and (grammar.ended or grammar.error):      # before this token: it was not to be
            self._end_by_grammar(seq, state, grammar)
            return
        sound = result.finite[i] and (result.allowed is None or result.allowed[i])
        if not sound:
            state.error = NONE_ALLOWED if result.finite[i] else NOT_FINITE
            self.scheduler.finish(seq, FinishReason.ERROR, register=False)
            return
        token_id = result.token_ids[i]
        _note_time(seq, state, read)
        self.scheduler.commit(seq, token_id)
        out = self.live.outputs[seq.seq_id]
        logprobs = None
        if out.logprobs is not None and result.logprobs is not None:
            logprobs = result.logprobs.entry(i, token_id, seq.request.params.logprobs or 0, self._text)
        ended = out.append(token_id, logprobs)
        if grammar is not None and (ended is None or ended[0] is FinishReason.LENGTH):
            grammar.consume(token_id)
            if grammar.ended or (grammar.error and ended is None):
                self._end_by_grammar(seq, state, grammar)
                return
        if ended is not None:
            self.scheduler.finish(seq, *ended)

    def _end_by_grammar(self, seq: Sequence, state: RequestState, grammar: GrammarMatcher) -> None:
        """The text is complete, even for a request that ignores EOS; or its grammar has failed."""
        self.live.outputs[seq.seq_id].flush()
        state.error = grammar.error or state.error
        self.scheduler.finish(seq, FinishReason.ERROR if grammar.error else FinishReason.STOP)

    def _take_unsampled(self, seq: Sequence, num_computed: int, touched: dict[RequestState, None]) -> None:
        """A chunk of a prompt was computed; a request without output ends with its prompt."""
        if seq.is_finished:
            return
        self.scheduler.commit_computed(seq, num_computed)
        if seq.request.params.max_tokens == 0 and num_computed >= seq.num_prompt_tokens:
            state = self.live.states[seq.seq_id]
            touched[state] = None
            for out in state.outputs:
                self.scheduler.finish(out.seq, FinishReason.LENGTH)

    def _add_prompt_logprobs(self, scores: Scores) -> None:
        request, size, start = scores.state.request, self._score_size, scores.shard * self._score_size
        logprobs = scores.state.prompt_logprobs
        assert logprobs is not None
        parts = [HostLogprobs.read(result, slice(start, start + size)) for result in scores.results]
        for i, position in enumerate(scores.positions):
            logprobs[position + 1] = parts[i // size].entry(
                i % size, request.prompt_token_ids[position + 1], request.params.prompt_logprobs or 0, self._text
            )

    def _text(self, token_id: int) -> str | None:
        return None if self.tokenizer is None else self.tokenizer.token_text(token_id)


def _note_time(seq: Sequence, state: RequestState, read: TokensRead) -> None:
    if state.metrics.first_token_time is None:
        state.metrics.first_token_time, state.metrics.first_scheduled_time = read.now, seq.first_scheduled_time
        read.started.append(state.request)
    read.num_tokens += 1
    if (last := seq.last_token_time) is not None:
        read.followers[last] = read.followers.get(last, 0) + 1
    seq.last_token_time = read.now
