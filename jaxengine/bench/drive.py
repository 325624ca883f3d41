"""Runs requests through an engine to their end and keeps what its steps did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import jax

from jaxengine.bench.workload import Prompt, greedy
from jaxengine.engine.engine import Engine
from jaxengine.engine.stats import StepStats


@dataclass
class Drive:
    """A run's wall time in seconds, its output tokens, and its steps in order."""

    wall_s: float
    output_tokens: int
    steps: list[StepStats]

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.wall_s

    @property
    def padding(self) -> float:
        """Tokens computed for nobody over all that were computed, 0 to 1."""
        return sum(s.padding for s in self.steps) / sum(s.bucket for s in self.steps)

    def kinds(self) -> str:
        """'decode[32] x 60, mixed[512] x 4'"""
        counts = Counter(f"{s.kind}[{s.bucket}]" for s in self.steps)
        return ", ".join(f"{name} x {count}" for name, count in sorted(counts.items()))


def drive(engine: Engine, prompts: list[Prompt], on_step: Callable[[], None] | None = None) -> Drive:
    """All prompts arrive at once. `on_step` is called after each step; what it takes is part of the time."""
    start = time.perf_counter()
    for prompt in prompts:
        engine.add_request(prompt.token_ids, greedy(prompt.output_len), output_kind="final_only")
    tokens, steps = 0, []
    while engine.has_unfinished:
        for output in engine.step():
            tokens += sum(len(completion.token_ids) for completion in output.outputs)
        if engine.last_plan is not None:
            steps.append(engine.stats[-1])
        if on_step is not None:
            on_step()
    return Drive(time.perf_counter() - start, tokens, steps)


def drain(engine: Engine) -> None:
    """Ends whatever runs and waits for the device."""
    for request_id in list(engine.requests):
        engine.abort(request_id)
    while engine.has_unfinished:
        engine.step()
    jax.block_until_ready(engine.runner.state)
