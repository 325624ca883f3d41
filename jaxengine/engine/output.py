"""From sampled ids to what the caller sees: text, finish reasons, log-probabilities. No jax here."""

from __future__ import annotations

from typing import Literal

from jaxengine.tokenizer import IncrementalDetokenizer, StopStrings, Tokenizer
from jaxengine.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    Request,
    RequestMetrics,
    RequestOutput,
    Sequence,
)

# What each step's RequestOutput holds: everything so far, what is new, or nothing until the request ends.
OutputKind = Literal["cumulative", "delta", "final_only"]


class SequenceOutput:
    """The readable side of one sequence: detokenises, watches for stops, collects log-probabilities."""

    def __init__(self, seq: Sequence, tokenizer: Tokenizer | None, eos_token_ids: frozenset[int]) -> None:
        params = seq.request.params
        self.seq, self.params = seq, params
        self.text = ""
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self._eos = frozenset() if params.ignore_eos else eos_token_ids
        self._stop_ids = frozenset(params.stop_token_ids or ())
        self._max_tokens = seq.max_num_tokens - seq.num_prompt_tokens
        self._num_tokens = 0
        self._first = seq.num_prompt_tokens
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = tokenizer.detokenizer(seq.request.prompt_token_ids, params.skip_special_tokens)
        stops = params.stop_strings
        self._stops = StopStrings(stops, params.include_stop_str_in_output) if stops else None
        self._sent_text = self._sent_tokens = 0

    def append(
        self, token_id: int, logprobs: dict[int, Logprob] | None
    ) -> tuple[FinishReason, int | str | None] | None:
        """Takes the sequence's next id; returns (finish reason, stop reason) when it is the last one."""
        self._num_tokens += 1
        if logprobs is not None and self.logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token_id].logprob
        early = self._num_tokens <= self.params.min_tokens
        is_stop = token_id in self._stop_ids
        if not early and (is_stop or token_id in self._eos):
            if self.params.include_stop_str_in_output and self._detokenizer is not None:
                self._emit(self._detokenizer.push(token_id))
            self.flush()
            return FinishReason.STOP, token_id if is_stop else None
        if self._detokenizer is not None:
            text = self._detokenizer.push(token_id)
            if self._stops is None:      # as most have none: every step comes through here for every sequence
                self.text += text
            else:
                safe, matched = self._stops.push(text, not early)
                self.text += safe
                if matched is not None:
                    return FinishReason.STOP, matched
        if self._num_tokens >= self._max_tokens:
            matched = self.flush()
            return (FinishReason.LENGTH, None) if matched is None else (FinishReason.STOP, matched)
        return None

    def _emit(self, delta: str) -> str | None:
        """Adds text; returns the stop string it completed."""
        if self._stops is None:
            self.text += delta
            return None
        safe, matched = self._stops.push(delta)
        self.text += safe
        return matched

    def flush(self) -> str | None:
        """Releases what was held back: broken characters, and text that might have become a stop string."""
        if self._detokenizer is None:
            return None
        matched = self._emit(self._detokenizer.finish())
        if matched is None and self._stops is not None:
            self.text += self._stops.finish()
        return matched

    def completion(self, kind: OutputKind) -> CompletionOutput:
        seq = self.seq
        start_text = start_token = 0
        if kind == "delta":
            start_text, start_token = self._sent_text, self._sent_tokens
            self._sent_text, self._sent_tokens = len(self.text), self._num_tokens
        first = self._first
        return CompletionOutput(      # by position, which takes half the time: one a step for each sequence
            seq.index,
            self.text[start_text:] if start_text else self.text,
            seq.token_ids[first + start_token : first + self._num_tokens],
            None if self.logprobs is None else self.logprobs[start_token:],
            None if self.logprobs is None else self.cumulative_logprob,
            None if seq.finish_reason is None else seq.finish_reason.value,
            seq.stop_reason,
        )


class RequestState:
    """A request under way: its sequences' outputs, prompt log-probabilities, and whether all have ended."""

    def __init__(self, request: Request, outputs: list[SequenceOutput], kind: OutputKind) -> None:
        self.request, self.outputs = request, outputs
        self.kind: OutputKind = kind
        self.error: str | None = None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if request.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None for _ in request.prompt_token_ids]     # nothing precedes the first token
        self.metrics = RequestMetrics(request.arrival_time)

    @property
    def finished(self) -> bool:
        if len(self.outputs) == 1:      # the common case by a short way: every step asks this of every request
            return self.outputs[0].seq.is_finished
        return all(out.seq.is_finished for out in self.outputs)

    def output(self) -> RequestOutput:
        request = self.request
        return RequestOutput(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            [out.completion(self.kind) for out in self.outputs],
            self.finished,
            self.prompt_logprobs,
            self.outputs[0].seq.num_cached_tokens,
            self.metrics,
            self.error,
        )
