"""What the engine reports, as plain numbers that a scrape reads at any moment.

Only the engine's thread writes them. Nothing here is locked, so a scrape never waits for a step, nor a step for a
scrape. A step costs a few microseconds however many sequences it has.
"""

from __future__ import annotations

from jaxengine.engine.engine import Engine
from jaxengine.engine.output import RequestState
from jaxengine.engine.stats import StepStats, TokensRead
from jaxengine.server.metrics.histogram import Histogram, decades, powers_of_two, with_bound
from jaxengine.server.metrics.targets import Share, SloTargets
from jaxengine.types import FinishReason, Sequence

COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
KINDS: tuple[str, ...] = ("decode", "mixed")      # of steps


class Recorder:
    """Observes one engine (see EngineObserver).

    Tokens count when their step is read, prompts once they are computed, sequences (a request with n > 1 has n of
    them) when they end. Latencies of whole requests are those of requests that came to their own end.
    """

    def __init__(self, engine: Engine, targets: SloTargets | None = None) -> None:
        self.engine = engine
        self.targets = targets or SloTargets()
        long, short = decades(0.001, 1000.0), decades(0.0005, 20.0)
        prompt, most = powers_of_two(engine.max_model_len), engine.config.scheduler.max_num_batched_tokens
        self.prompt_tokens = self.generation_tokens = 0
        self.ttft = Histogram(with_bound(long, self.targets.ttft))
        self.itl = Histogram(with_bound(short, self.targets.itl))
        self.tpot = Histogram(with_bound(short, self.targets.itl))      # the mean gap of a sequence
        self.e2e, self.queue, self.prefill, self.decode = (Histogram(long) for _ in range(4))
        self.prompt_length, self.output_length = Histogram(prompt), Histogram(prompt)
        self.finished = {reason.value: 0 for reason in FinishReason}
        self.slo = {"ttft": Share(), "itl": Share(), "request": Share()}
        buckets, shards = engine.runner.buckets, engine.runner.num_shards
        self.step_time = {
            (kind, shards * bucket): Histogram(decades(0.0001, 10.0))
            for kind, sizes in (("decode", buckets.decode), ("mixed", buckets.mixed)) for bucket in sizes
        }
        self.step_tokens = {kind: Histogram(powers_of_two(most)) for kind in KINDS}
        self.padding = dict.fromkeys(KINDS, 0)

    def step_read(self, stats: StepStats, tokens: TokensRead) -> None:
        self.step_time[stats.kind, stats.bucket].observe(stats.step_s)
        self.step_tokens[stats.kind].observe(stats.num_tokens)
        self.padding[stats.kind] += stats.padding
        self.generation_tokens += tokens.num_tokens
        now = tokens.now
        for last, times in tokens.followers.items():
            self.itl.observe(now - last, times)
            if self.targets.itl is not None:
                self.slo["itl"].judge(now - last <= self.targets.itl, times)
        for request in tokens.started:
            self.prompt_tokens += len(request.prompt_token_ids)
            self.ttft.observe(now - request.arrival_time)
            if self.targets.ttft is not None:
                self.slo["ttft"].judge(now - request.arrival_time <= self.targets.ttft)

    def request_ended(self, state: RequestState) -> None:
        sequences = [out.seq for out in state.outputs]
        for seq in sequences:
            assert seq.finish_reason is not None
            self.finished[seq.finish_reason.value] += 1
        if not all(seq.finish_reason in COMPLETE for seq in sequences):
            return
        times, prompt = state.metrics, len(state.request.prompt_token_ids)
        assert times.finished_time is not None
        self.e2e.observe(times.finished_time - times.arrival_time)
        self.prompt_length.observe(prompt)
        if times.first_scheduled_time is not None:
            self.queue.observe(times.first_scheduled_time - times.arrival_time)
        if times.first_token_time is None:      # nothing was asked for but the prompt
            self.prompt_tokens += prompt
            return
        if times.first_scheduled_time is not None:
            self.prefill.observe(times.first_token_time - times.first_scheduled_time)
        self.decode.observe(times.finished_time - times.first_token_time)
        self._end_sequences(sequences, times.arrival_time, times.first_token_time)

    def _end_sequences(self, sequences: list[Sequence], arrival: float, first: float) -> None:
        gaps = []
        for seq in sequences:
            num_tokens = len(seq.token_ids) - seq.num_prompt_tokens      # without what is sampled beyond its end
            self.output_length.observe(num_tokens)
            if num_tokens > 1 and seq.last_token_time is not None:
                gaps.append((seq.last_token_time - first) / (num_tokens - 1))
                self.tpot.observe(gaps[-1])
        ttft, itl = self.targets.ttft, self.targets.itl
        if ttft is not None or itl is not None:
            soon = ttft is None or first - arrival <= ttft
            self.slo["request"].judge(soon and (itl is None or all(gap <= itl for gap in gaps)))
